package wire

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Limits on a node's data, to bound the scheduler's cost and prevent overflow.
const (
	// MaxAnnotationBytes is Kubernetes' limit for all annotations of an object.
	MaxAnnotationBytes = grant.MaxAnnotationBytes
	// MaxGPUs is per node.
	MaxGPUs  = 64
	maxModel = 256
	maxIndex = 1 << 12
	maxNUMA  = 1 << 10
	maxCores = 1 << 16
	maxSlots = 1 << 16
	maxLink  = 1 << 20
)

// DecodeNode returns the GPUs in a node's annotations: ours if valid, else HAMi's. No annotation means no
// GPUs.
//
// On an error, nothing may be placed on the node.
func DecodeNode(n *scheduler.Node) (scheduler.Inventory, error) {
	inventory, _, err := ReadNode(n)
	return inventory, err
}

// PassedOver returns what DecodeNode ignores: our invalid annotation if HAMi's is used, invalid links, and
// differences between the two.
func PassedOver(n *scheduler.Node) error {
	_, passed, _ := ReadNode(n)
	return passed
}

// ReadNode is DecodeNode and PassedOver.
func ReadNode(n *scheduler.Node) (_ scheduler.Inventory, passed, err error) {
	inventory, passed, err := gpus(n.Annotations)
	if value, there := n.Annotations[AnnotationCordon]; there && err == nil {
		err = in(AnnotationCordon, cordon(inventory.GPUs, value))
	}
	if passed != nil {
		passed = fmt.Errorf("node %q: %w", n.Name, passed)
	}
	if err != nil {
		return scheduler.Inventory{}, passed, fmt.Errorf("node %q: %w", n.Name, err)
	}
	return inventory, passed, nil
}

func in(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("annotation %s: %w", key, err)
}

func both(first, second error) error {
	if first == nil {
		return second
	}
	return fmt.Errorf("%w; %w", first, second)
}

// gpus reads the first valid format.
func gpus(annotations map[string]string) (_ scheduler.Inventory, passed, err error) {
	if value, there := annotations[AnnotationGPUs]; there {
		inventory, err := decodeGPUs(value)
		if err == nil {
			return inventory, disagree(inventory.GPUs, annotations), nil
		}
		passed = in(AnnotationGPUs, err)
	}
	value, there := annotations[AnnotationRegister]
	if !there {
		return scheduler.Inventory{}, nil, passed
	}
	registered, err := decodeRegister(value)
	if err == nil {
		registered, err = ordered(registered)
	}
	if err != nil {
		return scheduler.Inventory{}, nil, both(passed, in(AnnotationRegister, err))
	}
	inventory := scheduler.Inventory{GPUs: registered}
	if value, there := annotations[AnnotationScore]; there {
		if inventory.Links, err = decodeScore(value, registered); err != nil {
			passed = both(passed, in(AnnotationScore, err))
		}
	}
	return inventory, passed, nil
}

// disagree reports differences: one of the annotations is outdated, or another agent's.
func disagree(ours []scheduler.GPU, annotations map[string]string) error {
	value, there := annotations[AnnotationRegister]
	if !there {
		return nil
	}
	theirs, err := decodeRegister(value)
	if err != nil {
		return in(AnnotationRegister, err)
	}
	memory := make(map[string]int64, len(theirs))
	for i := range theirs {
		memory[theirs[i].UUID] = theirs[i].MemoryMiB
	}
	difference := ""
	for i := range ours {
		mib, there := memory[ours[i].UUID]
		delete(memory, ours[i].UUID)
		switch {
		case difference != "":
		case !there:
			difference = fmt.Sprintf("GPU %s is only in the first", ours[i].UUID)
		case mib != ours[i].MemoryMiB:
			difference = fmt.Sprintf("GPU %s has %d MiB in the first and %d in the second", ours[i].UUID, ours[i].MemoryMiB, mib)
		}
	}
	for i := range theirs {
		if _, left := memory[theirs[i].UUID]; left && difference == "" {
			difference = fmt.Sprintf("GPU %s is only in the second", quote.Short(theirs[i].UUID))
		}
	}
	if difference == "" {
		return nil
	}
	return fmt.Errorf("annotations %s and %s: %s: using the first; make sure a single agent writes both, or remove the outdated one", AnnotationGPUs, AnnotationRegister, difference)
}

func ordered(gpus []scheduler.GPU) ([]scheduler.GPU, error) {
	if len(gpus) > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", len(gpus), MaxGPUs)
	}
	seen := make(map[string]struct{}, len(gpus))
	for i := range gpus {
		if err := check(&gpus[i]); err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		if _, twice := seen[gpus[i].UUID]; twice {
			return nil, fmt.Errorf("GPU %d: %s is listed more than once", i, gpus[i].UUID)
		}
		seen[gpus[i].UUID] = struct{}{}
	}
	slices.SortFunc(gpus, func(a, b scheduler.GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return gpus, nil
}

func check(c *scheduler.GPU) error {
	if err := grant.ValidateUUID(c.UUID); err != nil {
		return fmt.Errorf("uuid %s: %w", quote.Short(c.UUID), err)
	}
	if len(c.Model) > maxModel || !utf8.ValidString(c.Model) {
		return fmt.Errorf("model %s: must be valid UTF-8 of at most %d bytes", quote.Short(c.Model), maxModel)
	}
	if c.NUMA < 0 {
		c.NUMA = scheduler.NUMAUnknown
	}
	switch c.Mode {
	case "":
		c.Mode = modeShared
	case modeShared, "mig", "mps":
	default:
		return fmt.Errorf("mode %s: must be %s, mig or mps", quote.Short(c.Mode), modeShared)
	}
	for _, f := range [...]struct {
		name    string
		n, most int64
	}{
		{"index", int64(c.Index), maxIndex}, {"numa", int64(max(c.NUMA, 0)), maxNUMA}, {"memory", c.MemoryMiB, grant.MaxMemoryMiB},
		{"cores", int64(c.Cores), maxCores}, {"slots", int64(c.Slots), maxSlots},
	} {
		if f.n < 0 || f.n > f.most {
			return fmt.Errorf("%s %d: must be from 0 to %d", f.name, f.n, f.most)
		}
	}
	return nil
}

const modeShared = "hami-core"

// cordon marks the listed GPUs. Unknown GPUs may be listed.
func cordon(gpus []scheduler.GPU, value string) error {
	if len(value) > MaxAnnotationBytes {
		return fmt.Errorf("%d bytes: more than the limit of %d", len(value), MaxAnnotationBytes)
	}
	var malformed error
	for uuid := range strings.SplitSeq(value, ",") {
		uuid = strings.TrimSpace(uuid)
		if uuid == "" {
			continue
		}
		if err := grant.ValidateUUID(uuid); err != nil && malformed == nil {
			malformed = fmt.Errorf("%s: %w", quote.Short(uuid), err)
		}
		for i := range gpus {
			if gpus[i].UUID == uuid {
				gpus[i].Cordoned = true
			}
		}
	}
	return malformed
}

// notJSON shortens the error: package json repeats input of any length.
func notJSON(err error) error {
	text := err.Error()
	if len(text) > 4*quote.MaxBytes {
		text = text[:4*quote.MaxBytes] + "…"
	}
	return fmt.Errorf("invalid JSON: %s", text)
}
