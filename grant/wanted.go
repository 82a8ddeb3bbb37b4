package grant

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const maxResizeBytes = 16 << 10

// Wanted is the requested change of a container; nil: none.
type Wanted struct {
	MemoryMiB *int64 `json:"memoryMiB,omitempty"`
	Cores     *int   `json:"cores,omitempty"`
	// GPU is the UUID of one GPU; "": each.
	GPU string `json:"gpu,omitempty"`
}

// DecodeResize reads api.AnnotationResize, as strictly as DecodeGrant:
//
//	{"main":{"memoryMiB":8000,"cores":30}}
//
// memoryMiB and cores (0: no limit) apply to each GPU of the container, or to the one that "gpu" names.
func DecodeResize(value string) (map[string]Wanted, error) {
	whole, err := parseJSON(value, maxResizeBytes)
	if err != nil {
		return nil, err
	}
	fields, err := object(whole)
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, Errorf(ErrMalformed, `names no container: write {"CONTAINER":{"memoryMiB":8000,"cores":30}}`)
	}
	wanted := map[string]Wanted{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if err := validateContainerName(name); err != nil {
			return nil, err
		}
		if wanted[name], err = decodeWanted(fields[name]); err != nil {
			return nil, fmt.Errorf("container %q: %w", name, err)
		}
	}
	return wanted, nil
}

func decodeWanted(value json.RawMessage) (w Wanted, err error) {
	fields, err := object(value, "memoryMiB", "cores", "gpu")
	if err != nil {
		return w, err
	}
	if field, ok := fields["memoryMiB"]; ok {
		n, err := number(field, 1, MaxMemoryMiB)
		if err != nil {
			return w, fmt.Errorf("memoryMiB: %w", err)
		}
		w.MemoryMiB = &n
	}
	if field, ok := fields["cores"]; ok {
		n, err := number(field, 0, MaxCorePercent)
		if err != nil {
			return w, fmt.Errorf("cores: %w", err)
		}
		w.Cores = new(int(n))
	}
	if field, ok := fields["gpu"]; ok {
		if w.GPU, err = text(field); err != nil {
			return w, fmt.Errorf("gpu: %w", err)
		}
		if err := ValidateUUID(w.GPU); err != nil {
			return w, fmt.Errorf("gpu %s: %w", quote.Short(w.GPU), err)
		}
	}
	if w.MemoryMiB == nil && w.Cores == nil {
		return w, Errorf(ErrMalformed, "neither memoryMiB nor cores is set")
	}
	return w, nil
}

func EncodeResize(wanted map[string]Wanted) (string, error) {
	data, err := json.Marshal(wanted)
	if err == nil {
		_, err = DecodeResize(string(data))
	}
	if err != nil {
		return "", fmt.Errorf("write %s: %w", api.AnnotationResize, err)
	}
	return string(data), nil
}

// Of returns the changed shares. An error is ErrMalformed: the container does not have the GPU.
func (w Wanted) Of(old []Share) ([]Share, error) {
	if w.GPU != "" && IndexOf(old, w.GPU) < 0 {
		return nil, Errorf(ErrMalformed, "it has no share of GPU %s", w.GPU)
	}
	shares := slices.Clone(old)
	for i := range shares {
		if w.GPU != "" && shares[i].UUID != w.GPU {
			continue
		}
		if w.MemoryMiB != nil {
			shares[i].MemoryMiB = *w.MemoryMiB
		}
		if w.Cores != nil {
			shares[i].CorePercent = *w.Cores
		}
	}
	return shares, nil
}

// Containers returns the names in a request, sorted.
func Containers(wanted map[string]Wanted) []string { return slices.Sorted(maps.Keys(wanted)) }

const (
	ResizeReserved = "reserved" // in the grant; the node follows
	ResizeRefused  = "refused"  // no change
)

type ResizeStatus struct {
	Request    string    `json:"request"`
	Outcome    string    `json:"outcome"`
	Message    string    `json:"message"`
	Generation int64     `json:"generation,omitempty"`
	Time       time.Time `json:"time"`
}
