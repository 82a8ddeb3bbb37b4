package grant

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/internal/quote"
)

const hamiType = "NVIDIA"

// Positional is a grant by position: one for each init container, then for each app container, in the order of
// the pod's spec.
type Positional [][]Share

// Empty returns whether no position has a share.
func (p Positional) Empty() bool {
	for _, position := range p {
		if len(position) > 0 {
			return false
		}
	}
	return true
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
