package nriplugin

import (
	"context"
	"errors"
	"io/fs"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// others is a directory's claim if it is of a container that the runtime doesn't list: one of
// docker's or podman's, which are in other namespaces of containerd or in none.
func others(dir string) bool {
	_, err := orphans.Read(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// sweepOthers gives back such claims whose containers are gone without a word. The wrapper
// does so before it books; where no other container of docker's comes, nobody else would.
// It says whether there were any.
func (p *Plugin) sweepOthers(ctx context.Context) (bool, error) {
	now, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	swept, err := orphans.Releaser{Ledger: p.Ledger, Judge: orphans.NewJudge()}.Sweep(ctx, now)
	if swept && err == nil {
		p.Log.Info("claims of containers that are gone, of other engines than the runtime, were given back")
	}
	return swept, err
}

// mayBeOthers says whether a refusal can be the fault of claims that sweepOthers gives back.
func mayBeOthers(err error) bool {
	return errors.Is(err, grant.ErrOverbooked) || errors.Is(err, ledger.ErrCorrupt)
}
