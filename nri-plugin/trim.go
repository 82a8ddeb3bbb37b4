package nriplugin

import (
	"context"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// trimEvery is how many looks at what is owed go by between two looks at the usage
// files of a state directory that has room: a node has hundreds of them.
const trimEvery = 6

// crowded says whether less than a quarter of the state directory's file system is free,
// or nobody knows.
func (p *Plugin) crowded() bool {
	var fs unix.Statfs_t
	err := unix.Statfs(filepath.Dir(p.Ledger.Dir("any")), &fs)
	return err != nil || fs.Bavail < fs.Blocks/4
}

// trim cuts usage files back to their size. Their containers can write them, and so
// can write past their end and fill the state directory; what is cut off is nothing
// that a limiter maps.
func (p *Plugin) trim(ctx context.Context) {
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		p.Log.Error("usage files not looked at", "error", err)
		return
	}
	for _, e := range snapshot.Entries {
		trimmed, err := limiter.TrimUsage(limiter.UsagePath(p.Ledger.Dir(e.ContainerID)))
		switch {
		case trimmed:
			p.Log.Warn("a container changed the size of its usage file, which is cut back",
				"pod", e.PodNamespace+"/"+e.PodName, "container", e.Container, "id", e.ContainerID)
			if p.Trimmed != nil {
				p.Trimmed(e.ContainerID)
			}
		case err != nil:
			p.Log.Debug("usage file not looked at", "id", e.ContainerID, "error", err)
		}
	}
}
