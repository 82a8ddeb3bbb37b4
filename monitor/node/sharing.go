package node

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia"
)

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

// Devices returns what the node offers. The error is of nvidia.Node.Partition.
func (s Sharing) Devices(n nvidia.Node) ([]Device, error) {
	strategy := s.MIG
	if strategy == "" {
		strategy = nvidia.MIGNone
	}
	parts, err := s.shared(n).Partition(strategy)
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
