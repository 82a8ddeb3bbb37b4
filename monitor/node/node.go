// Package node is what the agent publishes of its node in the state directory, so
// that the CLI and the runtime wrapper know the GPUs without asking NVML or a
// daemon: <state-dir>/node.json, replaced by a rename whenever it changes.
package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/nvidia"
)

// fileName is the file's name in the state directory.
const fileName = "node.json"

// cacheName is where gpuslice-runtime keeps the same for a node without an agent
// (package ociruntime, Inventory), under the key "node".
const cacheName = "gpus.json"

// fileVersion is the version of the format.
const fileVersion = 2

// File is node.json.
type File struct {
	Version      int       `json:"version"`
	Name         string    `json:"name"`
	AgentVersion string    `json:"agentVersion"`
	WrittenAt    time.Time `json:"writtenAt"`
	// BootID is the kernel's boot_id when it was written: what is of another boot says
	// nothing of the GPUs that are there now. Unlike the time, nobody sets it. Write does.
	BootID string `json:"bootID,omitempty"`
	// Devices are what may be granted, and how much of each.
	Devices []Device    `json:"devices"`
	Node    nvidia.Node `json:"node"`
	// Health is that of each GPU and MIG device that the agent has something to say of,
	// by UUID; of one that isn't in it nothing bad is known.
	Health map[string]nvidia.Health `json:"health,omitempty"`
	// Topology is how the GPUs are connected; empty where nobody asked.
	Topology nvidia.Topology `json:"topology,omitzero"`
	// ContextMiB is what a CUDA context of each device is expected to take, by UUID. It
	// follows from the others, for readers that don't know the models.
	ContextMiB map[string]int64 `json:"contextMiB,omitempty"`
}

// Encode is the file's content.
func (f File) Encode() ([]byte, error) {
	f.Version = fileVersion
	f.ContextMiB = make(map[string]int64, len(f.Devices))
	for _, d := range f.Devices {
		if gpu, known := f.Node.GPU(d.GPU); known {
			f.ContextMiB[d.UUID] = gpu.ContextMiB()
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}

// Device finds a device by its UUID.
func (f File) Device(uuid string) (Device, bool) {
	i := slices.IndexFunc(f.Devices, func(d Device) bool { return d.UUID == uuid })
	if i < 0 {
		return Device{}, false
	}
	return f.Devices[i], true
}

// Unhealthy says why a GPU or MIG device can't be given out; empty if it can. A MIG
// device is as its GPU is, or worse.
func (f File) Unhealthy(uuid, gpu string) string {
	for _, id := range []string{uuid, gpu} {
		if h, known := f.Health[id]; known && !h.Healthy {
			return cmp.Or(h.Reason, "the agent says so")
		}
	}
	return ""
}

// Write publishes the file. Readers see the old one or the new one, never a part.
func Write(stateDir string, f File) error {
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		f.BootID = string(bytes.TrimSpace(boot)) // without it readers go by the time
	}
	data, err := f.Encode()
	if err != nil {
		return fmt.Errorf("write %s: %w", fileName, err)
	}
	return atomicfile.Write(filepath.Join(stateDir, fileName), data, 0o644)
}

// Read reads the file or, on a node where no agent has run, what gpuslice-runtime was told.
func Read(stateDir string) (File, error) {
	path := filepath.Join(stateDir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		missing := err
		if path, data, err = readCache(stateDir); errors.Is(err, fs.ErrNotExist) {
			return File{}, fmt.Errorf("%w: has gpuslice-agent run on this node with --state-dir %s, or gpuslice-runtime given a GPU?", missing, stateDir)
		}
	}
	if err != nil {
		return File{}, err
	}
	f, err := Decode(data)
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", path, err)
	}
	return f, nil
}

// readCache reads what the file would say from gpuslice-runtime's cache.
func readCache(stateDir string) (path string, data []byte, err error) {
	path = filepath.Join(stateDir, cacheName)
	if data, err = os.ReadFile(path); err != nil {
		return path, nil, err
	}
	var cache struct {
		Node json.RawMessage `json:"node"`
	}
	if err := json.Unmarshal(data, &cache); err != nil {
		return path, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return path, cache.Node, nil
}

// Decode reads a file's content.
func Decode(data []byte) (File, error) {
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, err
	}
	if f.Version != fileVersion {
		return File{}, fmt.Errorf("its version is %d, and this program knows %d: use the agent's own version", f.Version, fileVersion)
	}
	if !square(f.Topology) {
		f.Topology = nvidia.Topology{} // it is for people: the rest is worth more
	}
	return f, nil
}

// square says whether a topology has a row and a column for each GPU.
func square(t nvidia.Topology) bool {
	if len(t.Pairs) != len(t.UUIDs) {
		return false
	}
	return !slices.ContainsFunc(t.Pairs, func(row []nvidia.Pair) bool { return len(row) != len(t.UUIDs) })
}
