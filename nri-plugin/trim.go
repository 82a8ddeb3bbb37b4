package nriplugin

import (
	"context"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// trimEvery is the number of background turns between two checks of all usage files.
const trimEvery = 6

// almostFull returns whether less than a quarter of the state directory's file system is free, or it is
// not known.
func (p *Plugin) almostFull() bool {
	var fs unix.Statfs_t
	err := unix.Statfs(filepath.Dir(p.Ledger.Dir("any")), &fs)
	return err != nil || fs.Bavail < fs.Blocks/4
}

// trim truncates usage files, which containers can extend to fill the state directory.
func (p *Plugin) trim(ctx context.Context) {
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		p.Log.Error("failed to check usage files", "error", err)
		return
	}
	for _, e := range snapshot.Entries {
		trimmed, err := limiter.TrimUsage(limiter.UsagePath(p.Ledger.Dir(e.ContainerID)))
		switch {
		case trimmed:
			p.Log.Warn("a container changed the size of its usage file; truncated",
				"pod", e.PodNamespace+"/"+e.PodName, "container", e.Container, "id", e.ContainerID)
			if p.Trimmed != nil {
				p.Trimmed(e.ContainerID)
			}
		case err != nil:
			p.Log.Debug("failed to check a usage file", "id", e.ContainerID, "error", err)
		}
	}
}
