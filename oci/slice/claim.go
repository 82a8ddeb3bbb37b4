package slice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

func claim(ctx context.Context, stateDir, name string, state rspec.State, spec *rspec.Spec) error {
	s, err := Read(stateDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no slice %s: run gpuslice cdi generate", name)
	}
	if err != nil {
		return err
	}
	if done, err := oci.Limited(ctx, stateDir, state.ID, spec.Mounts, ""); done || err != nil {
		return err
	}
	if err := checkSpec(s, oci.ContainerOf(state.ID, spec)); err != nil {
		return err
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return oci.AdviseRoot(err)
	}
	defer unlock()
	if err := checkFiles(s, state, spec); err != nil {
		return err
	}
	r, err := openLedger(stateDir)
	if err != nil {
		return oci.AdviseRoot(err)
	}
	defer r.Ledger.Close()
	if err := checkFree(ctx, r, stateDir, name); err != nil {
		return err
	}
	record, err := orphans.NewRecord(r.Judge.Proc, state.Pid)
	if err != nil {
		return err
	}
	record.Bundle, record.Slice = state.Bundle, name
	err = reserve(ctx, r, stateDir, s, state.ID, record)
	if !errors.Is(err, grant.ErrOverbooked) {
		return err
	}
	released, releaseErr := releaseOrphans(ctx, r, stateDir)
	if releaseErr != nil {
		return errors.Join(err, releaseErr)
	}
	if released {
		return reserve(ctx, r, stateDir, s, state.ID, record)
	}
	return err
}

func openLedger(stateDir string) (orphans.Releaser, error) {
	opened, err := ledger.Open(stateDir, ledger.WithRecovery(oci.RecoverClaim))
	return orphans.Releaser{Ledger: opened, Judge: orphans.NewJudge()}, err
}

func reserve(ctx context.Context, r orphans.Releaser, stateDir string, s Slice, id string, record orphans.Record) error {
	dir := Dir(stateDir, s.Name)
	mark := filepath.Join(dir, markName)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	_, err := r.Ledger.Claim(ctx, s.claim(id), s.capacities(), func(claimDir string) error {
		return fillClaim(claimDir, dir, id, record)
	})
	if err != nil {
		err = errors.Join(err, os.Remove(mark)) // the files are unchanged
	}
	return err
}

// releaseOrphans releases those of slices, with new files, and of the runtime wrapper.
func releaseOrphans(ctx context.Context, r orphans.Releaser, stateDir string) (released bool, err error) {
	names, err := List(stateDir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		u, err := userOf(ctx, stateDir, name)
		if err != nil {
			return released, err
		}
		if u == nil || u.running(r.Judge) {
			continue
		}
		if err := releaseOrphan(ctx, r, Dir(stateDir, name), u); err != nil {
			return released, err
		}
		released = true
	}
	now, err := r.Ledger.Snapshot(ctx)
	if err != nil {
		return released, err
	}
	more, err := r.Sweep(ctx, now)
	return released || more, err
}

// checkFree refuses a used slice. After an orphan it makes new files, and refuses this container, which has the old
// ones mounted.
func checkFree(ctx context.Context, r orphans.Releaser, stateDir, name string) error {
	u, err := userOf(ctx, stateDir, name)
	if err != nil {
		return err
	}
	dir := Dir(stateDir, name)
	fresh, who := !marked(dir), "a container"
	switch {
	case u == nil:
		err = renewUsed(dir)
	case u.running(r.Judge):
		return fmt.Errorf("container %s uses it, and a slice is for one container at a time: %s", oci.ShortID(u.id), others(ctx, stateDir, name))
	default:
		who = "container " + oci.ShortID(u.id)
		err = releaseOrphan(ctx, r, dir, u)
	}
	if err != nil || fresh {
		return err
	}
	return errors.New(who + " used it and was killed with its runtime; the slice is free now: start the container again")
}

func others(ctx context.Context, stateDir, but string) string {
	names, _ := List(stateDir)
	var free []string
	for _, name := range names {
		if u, err := userOf(ctx, stateDir, name); name != but && err == nil && u == nil {
			free = append(free, name)
		}
	}
	if len(free) == 0 {
		return "no other slice is free"
	}
	return "free slices: " + strings.Join(free, ", ")
}

// release checks bundle and process: other runtimes use the same IDs, and poststop is called also for a refused
// container.
func release(ctx context.Context, stateDir, name string, state rspec.State) error {
	if err := ledger.ValidateContainerID(state.ID); err != nil {
		return err
	}
	if !exists(ledger.DirOf(stateDir, state.ID)) {
		return nil // without a claim
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return oci.AdviseRoot(err)
	}
	defer unlock()
	r, err := openLedger(stateDir)
	if err != nil {
		return oci.AdviseRoot(err)
	}
	defer r.Ledger.Close()
	dir := r.Ledger.Dir(state.ID)
	record, err := orphans.Read(dir)
	if err != nil || record.Slice != name || record.Bundle != state.Bundle || r.Judge.Proc.Lives(record.Creator) {
		return nil // a claim of the wrapper, the agent, or another container
	}
	if err := renewUsed(Dir(stateDir, name)); err != nil {
		return err
	}
	return r.Drop(ctx, state.ID, record.Nonce)
}

func releaseOrphan(ctx context.Context, r orphans.Releaser, dir string, u *user) error {
	record, err := orphans.Read(u.dir)
	if err != nil && !errors.Is(err, orphans.ErrDamaged) {
		return err
	}
	if err := renewUsed(dir); err != nil {
		return err
	}
	return r.Release(ctx, u.id, record.Nonce, false)
}

// renewUsed precedes the release, which makes the slice free.
func renewUsed(dir string) error {
	if !marked(dir) {
		return nil
	}
	return renew(dir)
}

// fillClaim mounts the slice's files in the claim's directory, for the monitor, the CLI and a recovery of the ledger.
func fillClaim(dir, sliceDir, id string, r orphans.Record) error {
	if err := vgpufs.Bind(sliceDir, dir); err != nil {
		return err
	}
	if err := limiter.Identify(dir, id); err != nil {
		return err
	}
	return r.Write(dir)
}

type user struct {
	id  string
	dir string // of its claim
}

// userOf finds the slice's claim, or nil. Not by its files, which can be unmounted; by either record, as one can be damaged.
func userOf(ctx context.Context, stateDir, name string) (*user, error) {
	if !exists(Dir(stateDir, name)) {
		return nil, nil
	}
	now, err := ledger.Read(ctx, stateDir)
	if err != nil {
		return nil, fmt.Errorf("find the container of slice %s: %w", name, err)
	}
	for _, e := range now.Entries {
		dir := ledger.DirOf(stateDir, e.ContainerID)
		record, _ := orphans.Read(dir)
		if e.TurnID == limiter.SliceTurnID(name) || record.Slice == name {
			return &user{e.ContainerID, dir}, nil
		}
	}
	return nil, nil
}

// running is true if it is unknown.
func (u *user) running(j orphans.Judge) bool {
	return exists(u.dir) && j.Alive(u.dir, false)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
