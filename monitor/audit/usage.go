package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/limiter"
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

// stamp does not change with writes through a mapping: files of containers on a GPU are always read.
type stamp struct {
	size, inode   int64
	seconds, nano int64
}

// touched reports whether a claim's usage file was written since the last call.
func (a *Auditor) touched(c *Claim) bool {
	var st unix.Stat_t
	if unix.Lstat(c.usageFile(), &st) != nil {
		return true
	}
	now := stamp{st.Size, int64(st.Ino), st.Mtim.Sec, st.Mtim.Nsec}
	last, known := a.stamps[c.ID]
	a.stamps[c.ID] = now
	return !known || last != now
}

// A missing file is no damage: a container can't remove it. Neither is another release's version.
func damage(c *Claim) string {
	if c.Dir == "" || len(c.Devices) == 0 {
		return ""
	}
	uuids := make([]string, len(c.Devices))
	for i, d := range c.Devices {
		uuids[i] = d.UUID
	}
	err := limiter.CheckUsage(c.usageFile(), uuids)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, limiter.ErrUsageVersion) || errors.Is(err, limiter.ErrLeased) {
		return ""
	}
	// Without the host's path, because it becomes an event of the pod.
	if _, why, found := strings.Cut(err.Error(), limiter.ErrUsage.Error()+": "); found {
		return "a process of the container overwrote its usage file (/.gpuslice/usage): " + why
	}
	return "the usage file (/.gpuslice/usage) can't be read: " + err.Error()
}
