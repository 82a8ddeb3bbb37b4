package grant

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// AnnotationResize is what people write on a pod that runs: how much its containers are to
// have of the GPUs that they have. The scheduler takes it off, and answers in AnnotationResizeStatus.
//
//	{"main":{"memoryMiB":8000,"cores":30}}
//
// memoryMiB and cores (0: not limited) are of each GPU that the container has, or of the
// one that "gpu" names; what isn't there stays as it is.
const AnnotationResize = "gpuslice.io/resize"

// AnnotationResizeStatus is the scheduler's answer to the last AnnotationResize, a ResizeStatus.
const AnnotationResizeStatus = "gpuslice.io/resize-status"

// maxResizeBytes bounds the annotation, which a tenant writes.
const maxResizeBytes = 16 << 10

// Wanted is what a container is to have of its GPUs. Nil stays as it is.
type Wanted struct {
	MemoryMiB *int64 `json:"memoryMiB,omitempty"`
	Cores     *int   `json:"cores,omitempty"`
	// GPU is the UUID of the one that is meant; empty: each.
	GPU string `json:"gpu,omitempty"`
}

// DecodeResize reads AnnotationResize, strictly: an amount that makes no sense, a field that isn't
// known, a container that is named twice or for which nothing is said are ErrMalformed.
func DecodeResize(value string) (map[string]Wanted, error) {
	if len(value) > maxResizeBytes {
		return nil, Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), maxResizeBytes)
	}
	reader, err := newJSONReader(value)
	if err != nil {
		return nil, err
	}
	wanted := map[string]Wanted{}
	err = reader.object(func(name string) error {
		if err := validateContainerName(name); err != nil {
			return err
		}
		w, err := decodeWanted(reader)
		if err != nil {
			return fmt.Errorf("container %q: %w", name, err)
		}
		wanted[name] = w
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(wanted) == 0 {
		return nil, Errorf(ErrMalformed, `names no container: write {"CONTAINER":{"memoryMiB":8000,"cores":30}}`)
	}
	return wanted, nil
}

func decodeWanted(reader *jsonReader) (w Wanted, err error) {
	err = reader.object(func(key string) error {
		switch key {
		case "memoryMiB":
			n, err := reader.number(1, MaxMemoryMiB)
			if err != nil {
				return fmt.Errorf("memoryMiB: %w", err)
			}
			w.MemoryMiB = &n
		case "cores":
			n, err := reader.number(0, MaxCorePercent)
			if err != nil {
				return fmt.Errorf("cores: %w", err)
			}
			cores := int(n)
			w.Cores = &cores
		case "gpu":
			if w.GPU, err = reader.text(); err != nil {
				return fmt.Errorf("gpu: %w", err)
			}
			if err := ValidateUUID(w.GPU); err != nil {
				return fmt.Errorf("gpu %s: %w", quote.Short(w.GPU), err)
			}
		default:
			return Errorf(ErrMalformed, "field %s is not known: memoryMiB, cores and gpu are", quote.Short(key))
		}
		return nil
	})
	if err == nil && w.MemoryMiB == nil && w.Cores == nil {
		err = Errorf(ErrMalformed, "neither memoryMiB nor cores is there")
	}
	return w, err
}

// EncodeResize writes AnnotationResize.
func EncodeResize(wanted map[string]Wanted) (string, error) {
	data, err := json.Marshal(wanted)
	if err == nil {
		_, err = DecodeResize(string(data))
	}
	if err != nil {
		return "", fmt.Errorf("write %s: %w", AnnotationResize, err)
	}
	return string(data), nil
}

// Of is what the shares become. An error is ErrMalformed: the container has no such GPU.
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

// Containers are the names in a request, in order.
func Containers(wanted map[string]Wanted) []string { return slices.Sorted(maps.Keys(wanted)) }

// Outcomes of a resize.
const (
	ResizeBooked  = "booked"  // the grant says it; the node follows
	ResizeRefused = "refused" // nothing has changed
)

// ResizeStatus is the scheduler's answer.
type ResizeStatus struct {
	// Request is the annotation's value that is answered.
	Request string `json:"request"`
	// Outcome is ResizeBooked or ResizeRefused.
	Outcome string `json:"outcome"`
	// Message says why, for people.
	Message string `json:"message"`
	// Generation is the grant's, of what is booked.
	Generation int64     `json:"generation,omitempty"`
	Time       time.Time `json:"time"`
}
