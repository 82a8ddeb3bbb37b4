// Package limiter reads and writes the two files that libvgpu.so (src/*.c) shares with the host: the limits
// file, which the host writes, and the usage file, which the container writes. Reads of usage files are
// bounds-checked and never map the file, because tenants can write anything into it.
package limiter

// MaxDevices is the maximum number of GPUs of a container.
const MaxDevices = 16

// MaxProcesses is the maximum number of CUDA processes of a container.
const MaxProcesses = usageSlots
