package noderegister

import (
	"cmp"

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
	GPU      nvidia.GPU
	Replicas int
	// MemoryMiB and CorePercent are the grantable amounts, scaling included.
	MemoryMiB   int64
	CorePercent int
	Mode        string
	Healthy     bool
	MIGCapable  bool
}

func (d Device) mode() string { return cmp.Or(d.Mode, api.ModeShared) }
