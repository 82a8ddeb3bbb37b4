// Package limiter reads and writes the two files that libvgpu.so (src/*.c) shares with the host: the limits file, which
// the host writes, and the usage file, which the container writes. src/layout.h defines them, layout.go repeats it.
// Tenants can write anything into usage files: reads are bounds-checked, and the file is never mapped.
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
