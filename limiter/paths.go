package limiter

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// FilesDir is what the claim's container has mounted as ContainerDir.
func FilesDir(claimDir string) string { return filepath.Join(claimDir, vgpufs.Name) }

// LimitsPath is the limits file of the claim in that directory.
func LimitsPath(claimDir string) string { return filepath.Join(FilesDir(claimDir), "limits") }

// UsagePath is the usage file of the claim in that directory.
func UsagePath(claimDir string) string { return filepath.Join(FilesDir(claimDir), usageName) }

// usageName is the usage file's name, on the host and in the container.
const usageName = "usage"

// LockPath is the file that writers of the claim's limits file lock. It is not mounted
// into the container: a tenant can lock every file that it can open.
func LockPath(claimDir string) string { return filepath.Join(claimDir, "limits.lock") }
