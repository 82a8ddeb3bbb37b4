package grant

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const hamiType = "NVIDIA"

// Positional is a grant by position: one for each init container, then for each app container, in the order of
// the pod's spec.
type Positional [][]Share

// Empty returns whether no position has a share.
func (p Positional) Empty() bool {
	return !slices.ContainsFunc(p, func(position []Share) bool { return len(position) > 0 })
}

// DecodeHAMi reads the value of HAMi's annotation (HAMi's pkg/device/devices.go, EncodePodSingleDevice):
//
//	pod      := position ";" position ";" …
//	position := "" | device ":" device ":" …
//	device   := UUID "," "NVIDIA" "," MiB "," cores
//
// Truncated values are rejected. HAMi 2.4 wrote ",,0,0:" into a position without a GPU.
func DecodeHAMi(value string) (Positional, error) {
	if len(value) > MaxAnnotationBytes {
		return nil, Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	if value == "" {
		return Positional{}, nil
	}
	body, ended := strings.CutSuffix(value, ";")
	if !ended {
		return nil, Errorf(ErrMalformed, `%s: must end with ";", as every position does; it may be truncated`, quote.Short(value))
	}
	if n := strings.Count(body, ";") + 1; n > MaxContainers {
		return nil, Errorf(ErrMalformed, "%d positions: at most %d are read", n, MaxContainers)
	}
	var positional Positional
	for i, text := range strings.Split(body, ";") {
		shares, err := decodePosition(text)
		if err != nil {
			return nil, fmt.Errorf("position %d %w", i, err)
		}
		positional = append(positional, shares)
	}
	return positional, nil
}

func decodePosition(text string) ([]Share, error) {
	if text == "" || strings.ReplaceAll(text, ",,0,0:", "") == "" {
		return nil, nil
	}
	body, ended := strings.CutSuffix(text, ":")
	if !ended {
		return nil, Errorf(ErrMalformed, `%s: must end with ":", as every device does; it may be truncated`, quote.Short(text))
	}
	if n := strings.Count(body, ":") + 1; n > MaxShares {
		return nil, Errorf(ErrMalformed, "%d devices: a container may have at most %d", n, MaxShares)
	}
	var shares []Share
	for i, device := range strings.Split(body, ":") {
		share, err := decodeDevice(device)
		if err != nil {
			return nil, fmt.Errorf("device %d %w", i, err)
		}
		if j := IndexOf(shares, share.UUID); j >= 0 {
			return nil, Errorf(ErrMalformed, "device %d uuid %q: is already device %d: name each GPU once in a position", i, share.UUID, j)
		}
		shares = append(shares, share)
	}
	return shares, nil
}

func decodeDevice(text string) (Share, error) {
	fields := strings.SplitN(text, ",", 5)
	if len(fields) != 4 {
		return Share{}, Errorf(ErrMalformed, "%s: must be UUID,%s,MiB,cores", quote.Short(text), hamiType)
	}
	if err := ValidateUUID(fields[0]); err != nil {
		return Share{}, fmt.Errorf("uuid %s: %w", quote.Short(fields[0]), err)
	}
	if fields[1] != hamiType {
		return Share{}, Errorf(ErrMalformed, "type %s: must be %q: this node grants no other vendor's GPUs", quote.Short(fields[1]), hamiType)
	}
	memory, err := parseNumber(fields[2], 1, MaxMemoryMiB)
	if err != nil {
		return Share{}, fmt.Errorf("memory %s: %w (MiB)", quote.Short(fields[2]), err)
	}
	cores, err := parseNumber(fields[3], 0, MaxCorePercent)
	if err != nil {
		return Share{}, fmt.Errorf("cores %s: %w (percent)", quote.Short(fields[3]), err)
	}
	return Share{UUID: fields[0], MemoryMiB: memory, CorePercent: int(cores)}, nil
}

// EncodeHAMi returns the value that HAMi's scheduler would write.
func EncodeHAMi(positional Positional) (string, error) {
	if len(positional) > MaxContainers {
		return "", Errorf(ErrMalformed, "%d positions: at most %d can be written", len(positional), MaxContainers)
	}
	var b strings.Builder
	for i, position := range positional {
		if len(position) > 0 {
			if err := ValidateShares(position); err != nil {
				return "", fmt.Errorf("position %d %w", i, err)
			}
		}
		for _, share := range position {
			b.WriteString(share.UUID + "," + hamiType + "," +
				strconv.FormatInt(share.MemoryMiB, 10) + "," + strconv.Itoa(share.CorePercent) + ":")
		}
		b.WriteByte(';')
	}
	return b.String(), nil
}

// noPosition: the container certainly has no position with shares.
const noPosition = -1

func findPosition(ctx context.Context, positional Positional, pod Pod, container string, names ContainerNames) (int, error) {
	if len(positional) == 1 {
		return 0, nil
	}
	const fix = "write the grant by name into " + api.AnnotationGrant
	if names == nil {
		return 0, Errorf(ErrAmbiguous, "%d positions, and the order of the pod's containers is unknown without a kubelet: %s", len(positional), fix)
	}
	listed, err := names.ContainerNames(ctx, pod)
	if err != nil {
		return 0, Errorf(ErrAmbiguous, "%d positions, and the order of the pod's containers could not be read from the kubelet: %w; %s", len(positional), err, fix)
	}
	sizes := counts(positional, func(position []Share) int { return len(position) })
	position, reason := matchPosition(sizes, listed, container)
	if reason != "" {
		return 0, Errorf(ErrAmbiguous, "%d positions: %s; %s", len(positional), reason, fix)
	}
	return position, nil
}

func counts[T any](list []T, of func(T) int) []int {
	all := make([]int, len(list))
	for i, one := range list {
		all[i] = of(one)
	}
	return all
}

// matchPosition returns the container's position by the kubelet's list, or the reason why it can't.
//
// The list lacks the plain init containers. So it is matched to the positions in order, a container with k
// devices to a position of k, and the last container to the last position. If the leftmost and the rightmost
// match give the same position, it is the container's. A container that is not listed is refused unless the
// listed ones use every position with devices.
func matchPosition(sizes []int, listed []ContainerDevices, container string) (position int, reason string) {
	asked := slices.IndexFunc(listed, func(c ContainerDevices) bool { return c.Name == container })
	leftmost := embed(sizes, listed)
	if leftmost == nil {
		return 0, fmt.Sprintf("they have %v devices, which does not match the containers that the kubelet lists (%s)", sizes, describeListed(listed))
	}
	if asked < 0 {
		if countHolders(sizes) == countHolders(counts(listed, func(c ContainerDevices) int { return c.Devices })) {
			return noPosition, ""
		}
		return 0, "the kubelet does not list this container (it lists no init and no ephemeral containers), and the remaining positions can belong to other containers"
	}
	if listed[asked].Devices == 0 {
		return noPosition, ""
	}
	rightmost := embedFromEnd(sizes, listed)
	if leftmost[asked] != rightmost[asked] {
		return 0, fmt.Sprintf("this container can have position %d or position %d, because the pod has init containers, which the kubelet does not list", leftmost[asked], rightmost[asked])
	}
	return leftmost[asked], ""
}

// embed returns the leftmost match, with the last container in the last position, or nil.
func embed(sizes []int, listed []ContainerDevices) []int {
	last := len(listed) - 1
	if last < 0 || len(sizes) == 0 || sizes[len(sizes)-1] != listed[last].Devices {
		return nil
	}
	positions := make([]int, 0, len(listed))
	next := 0
	for _, container := range listed[:last] {
		for next < len(sizes)-1 && sizes[next] != container.Devices {
			next++
		}
		if next >= len(sizes)-1 {
			return nil
		}
		positions = append(positions, next)
		next++
	}
	return append(positions, len(sizes)-1)
}

func embedFromEnd(sizes []int, listed []ContainerDevices) []int {
	positions := make([]int, len(listed))
	next := len(sizes) - 1
	for i := len(listed) - 1; i >= 0; i-- {
		for next > 0 && sizes[next] != listed[i].Devices {
			next--
		}
		positions[i] = next
		next--
	}
	return positions
}

func countHolders(counts []int) (n int) {
	for _, count := range counts {
		if count > 0 {
			n++
		}
	}
	return n
}

func describeListed(listed []ContainerDevices) string {
	const most = 8
	var texts []string
	for _, container := range listed[:min(len(listed), most)] {
		texts = append(texts, fmt.Sprintf("%s: %d", quote.Short(container.Name), container.Devices))
	}
	if len(listed) > most {
		texts = append(texts, fmt.Sprintf("and %d more", len(listed)-most))
	}
	return strings.Join(texts, ", ")
}
