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

// claim books a slice for a container that is being created.
func claim(ctx context.Context, stateDir, name string, state rspec.State, spec *rspec.Spec) error {
	s, err := Read(stateDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no slice %s: run gpuslice cdi generate", name)
	}
	if err != nil {
		return err
	}
	if done, err := limitedOtherwise(ctx, stateDir, state.ID, spec); done || err != nil {
		return err
	}
	if err := checkSpec(s, oci.ContainerOf(state.ID, spec)); err != nil {
		return err
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return rootAdvice(err)
	}
	defer unlock()
	if err := checkFiles(s, state, spec); err != nil {
		return err
	}
	ledger, err := ledger.Open(stateDir, ledger.WithRecovery(oci.RecoverShares))
	if err != nil {
		return rootAdvice(err)
	}
	defer ledger.Close()
	r := orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}
	if err := vacate(ctx, r, stateDir, name); err != nil {
		return err
	}
	record, err := orphans.NewRecord(r.Judge.Proc, state.Pid)
	if err != nil {
		return err
	}
	record.Bundle, record.Slice = state.Bundle, name
	err = book(ctx, r, stateDir, s, state.ID, record)
	if errors.Is(err, grant.ErrOverbooked) {
		swept, sweepErr := sweep(ctx, r, stateDir)
		if sweepErr != nil {
			return errors.Join(err, sweepErr)
		}
		if swept {
			err = book(ctx, r, stateDir, s, state.ID, record)
		}
	}
	return err
}

// book puts a slice's claim into the ledger.
func book(ctx context.Context, r orphans.Releaser, stateDir string, s Slice, id string, record orphans.Record) error {
	dir := Dir(stateDir, s.Name)
	mark := filepath.Join(dir, markName)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	_, err := r.Ledger.Claim(ctx, s.claim(id), s.capacities(), func(claimDir string) error {
		return fillClaim(claimDir, dir, id, record)
	})
	if err != nil {
		err = errors.Join(err, os.Remove(mark)) // the files are as they were
	}
	return err
}

// sweep gives back what containers had that are gone without a word: those of slices,
// whose files are made again, and the wrapper's.
func sweep(ctx context.Context, r orphans.Releaser, stateDir string) (bool, error) {
	names, err := List(stateDir)
	if err != nil {
		return false, err
	}
	swept := false
	for _, name := range names {
		h, err := holderOf(ctx, stateDir, name)
		if err != nil {
			return swept, err
		}
		if h == nil || h.alive(r.Judge) {
			continue
		}
		if err := clearAway(ctx, r, Dir(stateDir, name), h); err != nil {
			return swept, err
		}
		swept = true
	}
	now, err := r.Ledger.Snapshot(ctx)
	if err != nil {
		return swept, err
	}
	more, err := r.Sweep(ctx, now)
	return swept || more, err
}

// vacate refuses a slice that another container has. One that a container had whose end
// nobody told gets new files, for what that one wrote is not the next one's; and this
// creation, which has the old ones mounted, is refused for once.
func vacate(ctx context.Context, r orphans.Releaser, stateDir, name string) error {
	h, err := holderOf(ctx, stateDir, name)
	if err != nil {
		return err
	}
	if h == nil {
		if !marked(Dir(stateDir, name)) {
			return nil
		}
		if err := renew(Dir(stateDir, name)); err != nil {
			return err
		}
		return errors.New("a container had it and was killed with its runtime; that is cleared away now: start the container again")
	}
	if h.alive(r.Judge) {
		return fmt.Errorf("container %s has it, and a slice is one container's at a time%s", short(h.id), others(ctx, stateDir, name))
	}
	if err := clearAway(ctx, r, Dir(stateDir, name), h); err != nil {
		return err
	}
	return fmt.Errorf("container %s had it and was killed with its runtime; that is cleared away now: start the container again", short(h.id))
}

// others says which slices are free, for a message.
func others(ctx context.Context, stateDir, but string) string {
	names, _ := List(stateDir)
	var free []string
	for _, name := range names {
		if h, err := holderOf(ctx, stateDir, name); name != but && err == nil && h == nil {
			free = append(free, name)
		}
	}
	if len(free) == 0 {
		return ": no other slice is free"
	}
	return ": free are " + strings.Join(free, ", ")
}

// release gives a slice back for a container that is gone. Ids are unique for one
// runtime's state alone, and a runtime calls poststop also for a container that was
// refused: so the claim has to be of that bundle, and of a process that has ended.
func release(ctx context.Context, stateDir, name string, state rspec.State) error {
	if err := ledger.ValidateContainerID(state.ID); err != nil {
		return err
	}
	if !exists(filepath.Join(stateDir, "containers", state.ID)) {
		return nil // never claimed, or given back
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return rootAdvice(err)
	}
	defer unlock()
	ledger, err := ledger.Open(stateDir, ledger.WithRecovery(oci.RecoverShares))
	if err != nil {
		return rootAdvice(err)
	}
	defer ledger.Close()
	r := orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}
	dir := ledger.Dir(state.ID)
	record, err := orphans.Read(dir)
	if err != nil || record.Slice != name || record.Bundle != state.Bundle || r.Judge.Proc.Lives(record.Creator) {
		return nil // it is somebody else's claim: the wrapper's, the agent's, another container's
	}
	if err := renewOf(Dir(stateDir, name), dir); err != nil {
		return err
	}
	return r.Drop(ctx, state.ID, record.Nonce)
}

// clearAway gives back the claim of a container that is gone without a word.
func clearAway(ctx context.Context, r orphans.Releaser, dir string, h *holder) error {
	record, err := orphans.Read(h.dir)
	if err != nil && !errors.Is(err, orphans.ErrDamaged) {
		return err
	}
	if err := renewOf(dir, h.dir); err != nil {
		return err
	}
	return r.Release(ctx, h.id, record.Nonce, false)
}

// renewOf renews a slice's files where a claim has them. That comes before the claim is
// given back: then the next container may come.
func renewOf(dir, claim string) error {
	if !sameLimits(dir, claim) {
		return nil
	}
	return renew(dir)
}

// fillClaim mounts the slice's files in a claim's directory too, where the monitor, the CLI and
// a ledger that is rebuilt look for the files of every container.
func fillClaim(dir, sliceDir, id string, r orphans.Record) error {
	if err := vgpufs.Bind(sliceDir, dir); err != nil {
		return err
	}
	if err := limiter.Identify(dir, id); err != nil {
		return err
	}
	return r.Write(dir)
}

// rootAdvice says what a lack of permission means.
func rootAdvice(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: shares of a GPU are booked as root, in the node's one ledger: start the container with a daemon that runs as root", err)
	}
	return err
}

// short shortens a container id as docker does.
func short(id string) string {
	if len(id) == 64 {
		return id[:12]
	}
	return id
}
