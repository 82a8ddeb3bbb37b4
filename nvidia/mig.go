package nvidia

import "strings"

// MIGDevice is a compute instance of a GPU in MIG mode: what CUDA sees as a device,
// with memory and compute units of its own.
type MIGDevice struct {
	// UUID identifies the device as long as it is there: "MIG-…".
	UUID string `json:"uuid"`
	// GPU is the UUID of the GPU that it is of.
	GPU string `json:"gpu"`
	// Profile is what nvidia-smi calls its kind: "1g.10gb", "1g.10gb+me",
	// "1c.2g.20gb".
	Profile string `json:"profile"`
	// MemoryMiB is its memory as NVML gives it, in MiB, rounded down. Compute instances
	// of one GPU instance share theirs: each has all of it here.
	MemoryMiB int64 `json:"memoryMiB"`
	// GPUInstance and ComputeInstance are NVML's ids of what it is made of.
	GPUInstance     int `json:"gpuInstance"`
	ComputeInstance int `json:"computeInstance"`
	// Slices are its compute slices, of the seven that most GPUs have; 0 if unknown.
	Slices int `json:"slices,omitempty"`
}

// ResourceName is the last part of the resource that the strategy mixed offers the
// device as, "mig-1g.10gb": a "+", which such names can't have, is a ".".
func (d MIGDevice) ResourceName() string { return migResource(d.Profile) }

func migResource(profile string) string {
	return "mig-" + strings.ReplaceAll(profile, "+", ".")
}

// MIGDevice finds a MIG device, and the GPU that it is of, by its UUID.
func (n Node) MIGDevice(uuid string) (MIGDevice, GPU, bool) {
	for _, c := range n.GPUs {
		for _, d := range c.MIG {
			if d.UUID == uuid {
				return d, c, true
			}
		}
	}
	return MIGDevice{}, GPU{}, false
}
