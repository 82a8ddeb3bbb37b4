// Package limiter reads and writes the two files that the preload library libvgpu.so (src/*.c) shares with the host:
// the limits file, which the host writes, and the usage file, which the container's processes write.
//
// src/layout.h defines the layouts, and layout.go repeats them. A tenant can write any number into its usage file: all
// reads are bounds-checked, it is never mapped, and it identifies no container.
package limiter

// Paths in a container.
const (
	ContainerDir         = "/.gpuslice"
	ContainerLibraryPath = "/.gpuslice/libvgpu.so"
	ContainerLimitsPath  = "/.gpuslice/limits"
	ContainerUsagePath   = "/.gpuslice/usage"
	ContainerPreloadPath = "/etc/ld.so.preload"
)

// MaxDevices is the maximum number of GPUs of a container.
const MaxDevices = 16

// MaxProcesses is the maximum number of CUDA processes of a container.
const MaxProcesses = usageSlots
