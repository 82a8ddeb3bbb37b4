// Package limiter reads and writes the two files that the preload library
// libvgpu.so (src/*.c, beside this package) shares with the host: the limits
// file, which the host writes and a container maps read-only, and the usage
// file, which the container's processes account in and the host reads.
//
// The layouts are defined once, in src/layout.h; a test asserts that the Go
// side (layout.go) agrees. A container can write its usage file, so what is read
// from it is a tenant's word: it is bounds-checked, never mapped, and good for
// showing people, not for deciding who is who. The package imports nothing of ours.
package limiter

// Paths of the limiter's files inside a container. The others but the preload are below the
// directory.
const (
	ContainerDir         = "/.gpuslice"
	ContainerLibraryPath = "/.gpuslice/libvgpu.so"
	ContainerLimitsPath  = "/.gpuslice/limits"
	ContainerUsagePath   = "/.gpuslice/usage"
	ContainerPreloadPath = "/etc/ld.so.preload"
)

// MaxDevices is the number of GPUs that one container can be limited on.
const MaxDevices = 16

// MaxProcesses is the number of CUDA processes that a container can have at once.
const MaxProcesses = usageSlots
