package limiter

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// FilesDir is the part of a claim's directory that is mounted as api.ContainerDir.
func FilesDir(claimDir string) string { return filepath.Join(claimDir, vgpufs.Name) }

func LimitsPath(claimDir string) string { return filepath.Join(FilesDir(claimDir), "limits") }

func UsagePath(claimDir string) string { return filepath.Join(FilesDir(claimDir), usageName) }

const usageName = "usage"

// LockPath is the file that writers of the limits file lock. A tenant can't open it.
func LockPath(claimDir string) string { return filepath.Join(claimDir, "limits.lock") }
