package noderegister

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Node is what the annotations and labels describe.
type Node struct {
	Devices       []Device
	Topology      nvidia.Topology
	DriverVersion string
	CUDAVersion   string
	MIGStrategy   nvidia.MIGStrategy
}

type Device struct {
	GPU   nvidia.GPU
	Slots int
	// MemoryMiB and CorePercent are the grantable amounts, scaling included.
	MemoryMiB   int64
	CorePercent int
	Mode        string
	Healthy     bool
	MIGCapable  bool
	MIGProfiles []MIGProfile
}

// MIGProfile is HAMi's kind of MIG instance.
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
		return api.ModeShared
	}
	return d.Mode
}
