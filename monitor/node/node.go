// Package node reads and writes <state-dir>/node.json, with which the CLI and the runtime wrapper know the GPUs.
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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/nvidia"
)

type File struct {
	Version      int       `json:"version"`
	Name         string    `json:"name"`
	AgentVersion string    `json:"agentVersion"`
	WrittenAt    time.Time `json:"writtenAt"`
	// BootID is the kernel's boot_id, set by Write: the GPUs can change with a boot.
	BootID  string      `json:"bootID,omitempty"`
	Devices []Device    `json:"devices"`
	Node    nvidia.Node `json:"node"`
	// Health is by UUID; healthy if missing.
	Health map[string]nvidia.Health `json:"health,omitempty"`
	// ComputeSource is where the use of a GPU's time by containers comes from, by UUID; missing: not known yet.
	ComputeSource map[string]nvidia.TimeSource `json:"computeSource,omitempty"`
	// Topology is the connections between GPUs; optional.
	Topology nvidia.Topology `json:"topology,omitzero"`
	// ContextMiB is the expected size of a CUDA context by UUID.
	ContextMiB map[string]int64 `json:"contextMiB,omitempty"`
	// MemoryPages is set by Encode.
	MemoryPages api.MemoryPages `json:"memoryPages"`
}

// Encode returns the content of the file.
func (f File) Encode() ([]byte, error) {
	f.Version, f.MemoryPages = api.NodeFileVersion, api.NVIDIAPages
	f.ContextMiB = make(map[string]int64, len(f.Devices))
	for _, d := range f.Devices {
		if gpu, known := f.Node.GPU(d.GPU); known {
			f.ContextMiB[d.UUID] = gpu.ContextMiB()
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}

func (f File) Device(uuid string) (Device, bool) {
	i := slices.IndexFunc(f.Devices, func(d Device) bool { return d.UUID == uuid })
	if i < 0 {
		return Device{}, false
	}
	return f.Devices[i], true
}

// HostMemoryMiB is the memory that can be granted beyond what the GPUs have.
func (f File) HostMemoryMiB() (excess int64) {
	for _, d := range f.Devices {
		if gpu, known := f.Node.GPU(d.UUID); known {
			excess += max(d.MemoryMiB-gpu.MemoryMiB, 0)
		}
	}
	return excess
}

// Unhealthy returns the reason; empty: healthy. A MIG device depends on its GPU.
func (f File) Unhealthy(uuid, gpu string) string {
	for _, id := range []string{uuid, gpu} {
		if h, known := f.Health[id]; known && !h.Healthy {
			return cmp.Or(h.Reason, "no reason given")
		}
	}
	return ""
}

// Write replaces the file.
func Write(stateDir string, f File) error {
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		f.BootID = string(bytes.TrimSpace(boot)) // optional
	}
	data, err := f.Encode()
	if err != nil {
		return fmt.Errorf("write %s: %w", api.NodeFileName, err)
	}
	return atomicfile.Write(filepath.Join(stateDir, api.NodeFileName), data, 0o644)
}

// Read reads the file or, without one, gpuslice-runtime's cache.
func Read(stateDir string) (File, error) {
	path := filepath.Join(stateDir, api.NodeFileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		missing := err
		if path, data, err = readCache(stateDir); errors.Is(err, fs.ErrNotExist) {
			return File{}, fmt.Errorf("%w: has gpuslice-agent run on this node with --state-dir %s?", missing, stateDir)
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

func readCache(stateDir string) (path string, data []byte, err error) {
	path = filepath.Join(stateDir, api.NodeCacheName)
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

// Decode decodes the content of the file.
func Decode(data []byte) (File, error) {
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, err
	}
	if f.Version != api.NodeFileVersion {
		return File{}, fmt.Errorf("its version is %d, not %d: use the version of the agent", f.Version, api.NodeFileVersion)
	}
	if !square(f.Topology) {
		f.Topology = nvidia.Topology{} // only for display
	}
	return f, nil
}

func square(t nvidia.Topology) bool {
	if len(t.Pairs) != len(t.UUIDs) {
		return false
	}
	return !slices.ContainsFunc(t.Pairs, func(row []nvidia.Pair) bool { return len(row) != len(t.UUIDs) })
}

// Sharing configures how a node's GPUs are shared.
type Sharing struct {
	// Replicas is the number of containers per GPU.
	Replicas int
	// Memory and Cores are factors.
	Memory, Cores float64
	// MemoryMiB overrides the memory of each GPU; 0: from NVML.
	MemoryMiB int64
	// MIG is how MIG devices are offered; empty is nvidia.MIGNone.
	MIG nvidia.MIGStrategy
	// Excludes reports GPUs that are not shared, by UUID and NVML's index; optional.
	Excludes func(uuid string, index int) bool
}

// Device is a GPU or MIG device that can be granted.
type Device api.NodeDevice

// MIG reports whether it is a MIG device.
func (d Device) MIG() bool { return d.UUID != d.GPU }

// Capacity returns what the ledger can reserve of it.
func (d Device) Capacity() grant.GPU { return grant.GPUOf(api.NodeDevice(d)) }

func Capacities(devices []Device) map[string]grant.GPU {
	gpus := make(map[string]grant.GPU, len(devices))
	for _, d := range devices {
		gpus[d.UUID] = d.Capacity()
	}
	return gpus
}

// Devices returns what the node offers. The error is of nvidia.PartitionOf.
func (s Sharing) Devices(n nvidia.Node) ([]Device, error) {
	strategy := s.MIG
	if strategy == "" {
		strategy = nvidia.MIGNone
	}
	parts, err := nvidia.PartitionOf(s.shared(n), strategy)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(n.GPUs))
	for _, c := range parts.GPUs {
		devices = append(devices, s.whole(c))
	}
	for _, d := range parts.Single {
		devices = append(devices, s.slice(n, d, ""))
	}
	for _, resource := range parts.Resources() {
		for _, d := range parts.Mixed[resource] {
			devices = append(devices, s.slice(n, d, resource))
		}
	}
	return devices, nil
}

func (s Sharing) shared(n nvidia.Node) nvidia.Node {
	if s.Excludes == nil {
		return n
	}
	gpus := n.GPUs
	n.GPUs = nil
	for _, c := range gpus {
		if s.Excludes(c.UUID, c.Index) {
			continue
		}
		var mig []nvidia.MIGDevice
		for _, d := range c.MIG {
			if !s.Excludes(d.UUID, -1) {
				mig = append(mig, d)
			}
		}
		c.MIG = mig
		n.GPUs = append(n.GPUs, c)
	}
	return n
}

func (s Sharing) whole(c nvidia.GPU) Device {
	memory := c.MemoryMiB
	if s.MemoryMiB != 0 {
		memory = s.MemoryMiB
	}
	return Device{
		UUID: c.UUID, GPU: c.UUID,
		MemoryMiB: int64(float64(memory) * s.Memory), CorePercent: int(grant.MaxCorePercent * s.Cores), Replicas: s.Replicas,
	}
}

// Compute instances of one GPU instance share its memory equally.
func (s Sharing) slice(n nvidia.Node, d nvidia.MIGDevice, resource string) Device {
	_, gpu, _ := n.MIGDevice(d.UUID)
	common := int64(0)
	for _, other := range gpu.MIG {
		if other.GPUInstance == d.GPUInstance {
			common++
		}
	}
	return Device{
		UUID: d.UUID, GPU: d.GPU, Resource: resource,
		MemoryMiB: d.MemoryMiB / max(common, 1), CorePercent: grant.MaxCorePercent, Replicas: 1,
	}
}
