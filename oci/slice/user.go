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

type user struct {
	id  string
	dir string // of its claim
}

// userOf finds the claim with the slice's limits file, or nil. The ledger is the only record of it.
func userOf(ctx context.Context, stateDir, name string) (*user, error) {
	if !exists(limiter.LimitsPath(Dir(stateDir, name))) {
		return nil, nil
	}
	now, err := ledger.Read(ctx, stateDir)
	if err != nil {
		return nil, fmt.Errorf("find the container of slice %s: %w", name, err)
	}
	for _, e := range now.Entries {
		if dir := ledger.DirOf(stateDir, e.ContainerID); sameLimits(Dir(stateDir, name), dir) {
			return &user{e.ContainerID, dir}, nil
		}
	}
	return nil, nil
}

func sameLimits(a, b string) bool {
	first, errA := os.Lstat(limiter.LimitsPath(a))
	second, errB := os.Lstat(limiter.LimitsPath(b))
	return errA == nil && errB == nil && os.SameFile(first, second)
}

// running is true if it is unknown.
func (u *user) running(j orphans.Judge) bool {
	return exists(u.dir) && j.Alive(u.dir, false)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
