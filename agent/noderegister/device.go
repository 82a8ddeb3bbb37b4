package noderegister

import "github.com/gpuslice/gpuslice/nvidia"

// The modes of a device, in HAMi's words.
const (
	ModeShared = "hami-core" // shared by limits
	ModeMIG    = "mig"       // partitioned by the GPU
)

// Node is what is told of a node.
type Node struct {
	// Devices are the GPUs that are offered, in any order.
	Devices []Device
	// Topology is how GPUs are connected; GPUs that aren't offered may be in it.
	Topology nvidia.Topology
	// DriverVersion and CUDAVersion are those of nvidia.Node; empty if unknown.
	DriverVersion string
	CUDAVersion   string
	// MIGStrategy is how MIG devices are offered; empty is nvidia.MIGNone.
	MIGStrategy nvidia.MIGStrategy
}

// Device is a GPU that is offered.
type Device struct {
	// GPU is the GPU as it is: UUID, index, model, NUMA node, all of its memory.
	GPU nvidia.GPU
	// Slots is how many containers may share it.
	Slots int
	// MemoryMiB and CorePercent are what may be given out of it, scaling included.
	MemoryMiB   int64
	CorePercent int
	// Mode is ModeShared or ModeMIG; empty is ModeShared.
	Mode string
	// Healthy says that it may be given out now.
	Healthy bool
	// MIGCapable says that the GPU is known to be one that can be partitioned.
	MIGCapable bool
	// MIGProfiles are what a scheduler that partitions GPUs may choose from.
	MIGProfiles []MIGProfile
}

// MIGProfile is a kind of MIG instance, as HAMi's annotation has it.
type MIGProfile struct {
	Name       string         `json:"name"`
	MemoryMiB  int32          `json:"memoryMB"`
	Core       int32          `json:"core"`
	Slices     uint32         `json:"sliceCount"`
	Placements []MIGPlacement `json:"placements"`
}

// MIGPlacement is where an instance may lie on a GPU.
type MIGPlacement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// mode is the device's mode, never empty.
func (d Device) mode() string {
	if d.Mode == "" {
		return ModeShared
	}
	return d.Mode
}
