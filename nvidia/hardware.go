package nvidia

import "github.com/gpuslice/gpuslice/nvidia/hardware"

// What a node's GPUs are: programs without NVML use package hardware.
type (
	Node       = hardware.Node
	GPU        = hardware.GPU
	MIGDevice  = hardware.MIGDevice
	Fault      = hardware.Fault
	Topology   = hardware.Topology
	Pair       = hardware.Pair
	Level      = hardware.Level
	Telemetry  = hardware.Telemetry
	TimeSource = hardware.TimeSource
)

const (
	NUMAUnknown = hardware.NUMAUnknown

	LevelSystem     = hardware.LevelSystem
	LevelNode       = hardware.LevelNode
	LevelHostBridge = hardware.LevelHostBridge
	LevelSwitches   = hardware.LevelSwitches
	LevelSwitch     = hardware.LevelSwitch
	LevelBoard      = hardware.LevelBoard

	TimesBySamples = hardware.TimesBySamples
	TimesByInfo    = hardware.TimesByInfo
	TimesByLimiter = hardware.TimesByLimiter
)
