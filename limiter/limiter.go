// Package limiter reads and writes the two files that libvgpu.so (src/*.c) shares with the host: the limits
// file, which the host writes, and the usage file, which the container writes. Reads of usage files are
// bounds-checked and never map the file, because tenants can write anything into it.
package limiter

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// MaxDevices is the maximum number of GPUs of a container.
const MaxDevices = 16

// MaxProcesses is the maximum number of CUDA processes of a container.
const MaxProcesses = usageProcesses

// FilesDir is the part of a claim's directory that is mounted as api.ContainerDir.
func FilesDir(claimDir string) string { return filepath.Join(claimDir, vgpufs.Name) }

func LimitsPath(claimDir string) string { return filepath.Join(FilesDir(claimDir), "limits") }

func UsagePath(claimDir string) string { return filepath.Join(FilesDir(claimDir), usageName) }

const usageName = "usage"

// LockPath is the file that writers of the limits file lock. A tenant can't open it.
func LockPath(claimDir string) string { return filepath.Join(claimDir, "limits.lock") }
