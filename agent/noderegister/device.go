package noderegister

import "github.com/gpuslice/gpuslice/nvidia"

// Modes of a device, by HAMi's names.
const (
	ModeShared = "hami-core" // shared with limits
	ModeMIG    = "mig"       // partitioned by MIG
)

// Node is what the annotations and labels describe.
type Node struct {
	// Devices are the offered GPUs, in any order.
	Devices []Device
	// Topology can include GPUs that are not offered.
	Topology nvidia.Topology
	// DriverVersion and CUDAVersion are those of nvidia.Node; can be empty.
	DriverVersion string
	CUDAVersion   string
	// MIGStrategy is empty for nvidia.MIGNone.
	MIGStrategy nvidia.MIGStrategy
}

// Device is an offered GPU.
type Device struct {
	GPU nvidia.GPU
	// Slots is how many containers can share it.
	Slots int
	// MemoryMiB and CorePercent are the grantable amounts, scaling included.
	MemoryMiB   int64
	CorePercent int
	// Mode is ModeShared or ModeMIG; empty is ModeShared.
	Mode string
	// Healthy: it can be granted now.
	Healthy bool
	// MIGCapable: the GPU supports MIG.
	MIGCapable bool
	// MIGProfiles are for schedulers that partition GPUs.
	MIGProfiles []MIGProfile
}

// MIGProfile is a kind of MIG instance in HAMi's annotation.
type MIGProfile struct {
	Name       string         `json:"name"`
	MemoryMiB  int32          `json:"memoryMB"`
	Core       int32          `json:"core"`
	Slices     uint32         `json:"sliceCount"`
	Placements []MIGPlacement `json:"placements"`
}

// MIGPlacement is a possible position of an instance.
type MIGPlacement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

func (d Device) mode() string {
	if d.Mode == "" {
		return ModeShared
	}
	return d.Mode
}
