package grant

import (
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// GPU is what can be granted of a GPU, or of a MIG device, which has one replica.
type GPU struct {
	UUID        string
	MemoryMiB   int64
	CorePercent int
	// Replicas is the number of containers that can share the GPU.
	Replicas int
	// Parent is the GPU of a MIG device, which shares its cordon; "": unknown, or no MIG device.
	Parent string `json:",omitempty"`
}

// GPUOf returns what can be granted of a device of the node.
func GPUOf(d api.NodeDevice) GPU {
	gpu := GPU{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Replicas: d.Replicas}
	if d.GPU != d.UUID {
		gpu.Parent = d.GPU
	}
	return gpu
}

func IsMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// CheckGPUs checks that the node has the GPUs, that they are large enough if empty, and that GPUs and MIG
// devices are not mixed: a program sees only one kind.
func CheckGPUs(shares []Share, gpus map[string]GPU) error {
	for _, share := range shares {
		if IsMIG(share.UUID) != IsMIG(shares[0].UUID) {
			return Errorf(ErrMalformed, "GPUs and MIG devices (%s, %s) can't be in one container: grant only one kind", shares[0].UUID, share.UUID)
		}
		gpu, ok := gpus[share.UUID]
		if !ok {
			return Errorf(ErrUnknownGPU, "GPU %s: this node has no such GPU to share: compare the grant with gpuslice status on the node", share.UUID)
		}
		if share.MemoryMiB > gpu.MemoryMiB {
			return Errorf(ErrOverbooked, "GPU %s: memory %d MiB requested, but the whole GPU has %d MiB to grant: request less",
				share.UUID, share.MemoryMiB, gpu.MemoryMiB)
		}
		if share.CorePercent > gpu.CorePercent {
			return Errorf(ErrOverbooked, "GPU %s: cores %d requested, but the whole GPU has %d to grant: request less",
				share.UUID, share.CorePercent, gpu.CorePercent)
		}
	}
	return nil
}
