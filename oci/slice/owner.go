package slice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
)

// holder is the claim that has a slice.
type holder struct {
	id  string
	dir string
}

// holderOf finds who has a slice: the claim whose limits are the slice's own file. Nil is
// nobody. So the ledger is the one book of it, and nothing else has to agree with it.
func holderOf(ctx context.Context, stateDir, name string) (*holder, error) {
	if !exists(limiter.LimitsPath(Dir(stateDir, name))) {
		return nil, nil
	}
	ledger, err := ledger.OpenReadOnly(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find who has slice %s: %w", name, err)
	}
	now, err := ledger.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("find who has slice %s: %w", name, err)
	}
	for _, e := range now.Entries {
		if dir := ledger.Dir(e.ContainerID); sameLimits(Dir(stateDir, name), dir) {
			return &holder{e.ContainerID, dir}, nil
		}
	}
	return nil, nil
}

// sameLimits says whether two directories have one limits file.
func sameLimits(a, b string) bool {
	first, errA := os.Lstat(limiter.LimitsPath(a))
	second, errB := os.Lstat(limiter.LimitsPath(b))
	return errA == nil && errB == nil && os.SameFile(first, second)
}

// alive says whether the container of a claim is there. What can't be found out counts
// as yes; a claim that is gone meanwhile as no.
func (h *holder) alive(j orphans.Judge) bool {
	return exists(h.dir) && j.Alive(h.dir, false)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
