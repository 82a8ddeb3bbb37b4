package nvidia

import "strings"

// MIGDevice is a compute instance of a GPU in MIG mode, which CUDA uses as a device.
type MIGDevice struct {
	// UUID is "MIG-…", valid until the device is removed.
	UUID string `json:"uuid"`
	GPU  string `json:"gpu"`
	// Profile is nvidia-smi's name of its kind: "1g.10gb", "1g.10gb+me", "1c.2g.20gb".
	Profile string `json:"profile"`
	// MemoryMiB is in MiB, rounded down. Compute instances of one GPU instance share memory: each
	// reports all of it.
	MemoryMiB       int64 `json:"memoryMiB"`
	GPUInstance     int   `json:"gpuInstance"`
	ComputeInstance int   `json:"computeInstance"`
	// Slices are compute slices, of the seven that most GPUs have; 0 if unknown.
	Slices int `json:"slices,omitempty"`
}

// ResourceName is the last part of the resource name with the strategy mixed, "mig-1g.10gb". A "+",
// which is not allowed in such names, becomes ".".
func (d MIGDevice) ResourceName() string { return migResource(d.Profile) }

func migResource(profile string) string {
	return "mig-" + strings.ReplaceAll(profile, "+", ".")
}

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
