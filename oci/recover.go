package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/procroot"
	"github.com/gpuslice/gpuslice/limiter"
)

// RecoverShares reads what a container holds from its limits file: the ledger's
// second source where a claim's own record is damaged.
func RecoverShares(dir string) ([]grant.Share, error) {
	return recoverShares(filepath.Join(dir, limitsFile))
}

// MountedShares is RecoverShares for a container that runs, by the limits file that is mounted
// in it; root is /proc/<pid>/root. What is there the container may have arranged: nothing
// outside its root is read, and nothing that would hold up who reads it: a file system that
// it has mounted on the way and that never answers is waited for no longer than wait.
func MountedShares(root string, wait time.Duration) ([]grant.Share, error) {
	type answer struct {
		shares []grant.Share
		err    error
	}
	answered := make(chan answer, 1) // who comes late is not waited for, and ends
	go func() {
		shares, err := mountedShares(root)
		answered <- answer{shares, err}
	}()
	select {
	case a := <-answered:
		return a.shares, a.err
	case <-time.After(wait):
		return nil, fmt.Errorf("recover shares: %s in %s was not found within %s: is a file system mounted there that does not answer?", limiter.ContainerLimitsPath, root, wait)
	}
}

func mountedShares(root string) ([]grant.Share, error) {
	f, err := procroot.Open(root, limiter.ContainerLimitsPath)
	if err != nil {
		return nil, fmt.Errorf("recover shares: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("recover shares: %s is not a regular file", f.Name()))
	}
	return recoverShares(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

func recoverShares(path string) ([]grant.Share, error) {
	limits, err := limiter.ReadLimits(path)
	if err != nil {
		return nil, fmt.Errorf("recover shares: %w", err)
	}
	shares := make([]grant.Share, 0, len(limits.Devices))
	for _, d := range limits.Devices {
		shares = append(shares, grant.Share{
			UUID: d.UUID, MemoryMiB: int64(d.MemoryLimitBytes / bytesPerMiB), CorePercent: int(d.CorePercent),
		})
	}
	return shares, nil
}
