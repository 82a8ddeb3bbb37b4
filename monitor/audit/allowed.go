package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/nvidia"
)

// allowed has Device.AllowedBytes by container ID and UUID. It is saved: the next agent must not kill processes for
// memory that this agent allowed, or for a limit that was lowered between the two.
type allowed struct {
	file  string // empty: not saved
	bytes map[string]map[string]uint64
	dirty bool
}

func openAllowed(file string) (*allowed, error) {
	a := &allowed{file: file, bytes: map[string]map[string]uint64{}}
	if file == "" {
		return a, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &a.bytes)
	}
	if err != nil || a.bytes == nil {
		a.bytes = map[string]map[string]uint64{}
	}
	return a, err
}

func (a *allowed) set(container, uuid string, bytes uint64) {
	of := a.bytes[container]
	if last, known := of[uuid]; known && last == bytes {
		return
	}
	if of == nil {
		of = map[string]uint64{}
		a.bytes[container] = of
	}
	of[uuid], a.dirty = bytes, true
}

// forget drops containers that have released all memory, if that is known.
func (a *allowed) forget(at map[string]bool, asked map[string][]nvidia.Process, claims map[string]*Claim) {
	for id, of := range a.bytes {
		if at[id] && claims[id] != nil {
			continue
		}
		before := len(of)
		maps.DeleteFunc(of, func(uuid string, _ uint64) bool { _, was := asked[uuid]; return was || claims[id] == nil })
		a.dirty = a.dirty || len(of) < before
		if len(of) == 0 {
			delete(a.bytes, id)
		}
	}
}

func (a *allowed) keep() error {
	if a.file == "" || !a.dirty {
		return nil
	}
	data, err := json.Marshal(a.bytes)
	if err == nil {
		err = atomicfile.Write(a.file, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save allowed memory: %w", err)
	}
	a.dirty = false
	return nil
}
