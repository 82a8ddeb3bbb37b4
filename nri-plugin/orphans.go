package nriplugin

import (
	"context"
	"errors"
	"io/fs"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// fromOtherEngine returns whether a directory's claim is of a container that this runtime does not list:
// one of docker or podman, which use other namespaces of containerd, or none.
func fromOtherEngine(dir string) bool {
	_, err := orphans.Read(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// releaseOrphans releases the claims of other engines' containers that are gone, and returns whether
// there were any. The OCI wrapper does it too, but only when such a container starts.
func (p *Plugin) releaseOrphans(ctx context.Context) (bool, error) {
	now, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	released, err := orphans.Releaser{Ledger: p.Ledger, Judge: orphans.NewJudge()}.Sweep(ctx, now)
	if released && err == nil {
		p.Log.Info("orphans of other container engines released")
	}
	return released, err
}
