package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
)

// Report is the result of a reconciliation: container IDs, sorted.
type Report struct {
	Kept []string
	// Unlisted are the owner's entries that are not listed, but alive. They count.
	Unlisted []string
	Removed  []string
	// Failed are the entries that could not be removed.
	Failed []string
	// These hidden directories of interrupted changes were removed.
	Leftovers []string
	// Corrupt are the unreadable entries of any owner that stay.
	Corrupt []string
	// CorruptRemoved are the removed unreadable entries, with ForWholeNode only.
	CorruptRemoved []string
}

type ReconcileOption func(*reconciliation)

// WithLiveness sets a check of unlisted entries by their directory: containerd does not list a container if
// it can't read its state. It is called under the lock.
func WithLiveness(alive func(dir string) bool) ReconcileOption {
	return func(r *reconciliation) { r.alive = alive }
}

// ForWholeNode: live has all containers of the node. Unreadable entries are removed too, if they are not
// listed and not alive.
func ForWholeNode() ReconcileOption {
	return func(r *reconciliation) { r.wholeNode = true }
}

// WithMemberLiveness sets a check of containers that are not listed, and have a claim in common with one that is: the
// directory does not show which of them is alive. It is called under the lock. Without it, they are not.
func WithMemberLiveness(alive func(containerID string) bool) ReconcileOption {
	return func(r *reconciliation) { r.memberAlive = alive }
}

type reconciliation struct {
	owner       string
	live        map[string]bool
	turns       map[limiter.TurnID]bool
	alive       func(dir string) bool         // may be nil
	memberAlive func(containerID string) bool // may be nil
	wholeNode   bool
	report      Report
}

// Reconcile removes the owner's entries that are not in live, the IDs of its runtime's containers and of their common
// claims, and not alive by WithLiveness. It reads all directories again.
func (l *Ledger) Reconcile(ctx context.Context, owner string, live []string, options ...ReconcileOption) (*Report, error) {
	r := &reconciliation{owner: owner, live: make(map[string]bool, len(live)), turns: make(map[limiter.TurnID]bool, len(live))}
	for _, option := range options {
		option(r)
	}
	for _, id := range live {
		r.live[id] = true
		r.turns[limiter.TurnIDOf(id, "")] = true
	}
	err := l.locked(ctx, func() error {
		if err := l.look(); err != nil {
			return err
		}
		doomed := l.judge(r)
		return l.change(func(uint64) error {
			return errors.Join(l.sweep(r, doomed), l.dropMembers(r), l.repairTurns(r.obsolete))
		})
	})
	if err != nil {
		return &r.report, fmt.Errorf("reconcile the claims of %q: %w", owner, err)
	}
	return &r.report, nil
}

func (l *Ledger) judge(r *reconciliation) (doomed []*entry) {
	for _, id := range slices.Sorted(maps.Keys(l.index.entries)) {
		e := l.index.entries[id]
		nobodys := e.Owner == "" // its record can't be read
		switch {
		case e.state == StateCorrupt && !r.isGone(e, l.Dir(id)):
			r.report.Corrupt = append(r.report.Corrupt, id)
		case nobodys && (r.live[id] || !r.wholeNode), !nobodys && e.Owner != r.owner:
			// It counts for nothing, or is another's.
		case r.lists(e):
			r.report.Kept = append(r.report.Kept, id)
		case e.counts() && r.alive != nil && r.alive(l.Dir(id)):
			r.report.Unlisted = append(r.report.Unlisted, id)
		default:
			doomed = append(doomed, e)
		}
	}
	return doomed
}

// lists returns whether a container of the entry is listed.
func (r *reconciliation) lists(e *entry) bool {
	return r.live[e.ContainerID] || slices.ContainsFunc(e.Members, func(m Member) bool { return r.live[m.ContainerID] })
}

// dropMembers drops the containers that are gone from the common claims that stay.
func (l *Ledger) dropMembers(r *reconciliation) error {
	var errs []error
	for _, id := range r.report.Kept {
		e := l.index.entries[id]
		gone := func(m Member) bool {
			return !r.live[m.ContainerID] && (r.memberAlive == nil || !r.memberAlive(m.ContainerID))
		}
		if e.state != StateActive || !slices.ContainsFunc(e.Members, gone) {
			continue
		}
		errs = append(errs, l.remember(e, slices.DeleteFunc(slices.Clone(e.Members), gone)))
	}
	return errors.Join(errs...)
}

// obsolete: Restore follows for listed containers that have lost their claim.
func (r *reconciliation) obsolete(id limiter.TurnID) bool {
	return !id.Restorable() || r.owner == OwnerNRI && !r.turns[id]
}

func (r *reconciliation) isGone(e *entry, dir string) bool {
	return r.wholeNode && !r.live[e.ContainerID] && r.alive != nil && !r.alive(dir)
}

// sweep removes hidden directories, which are not in use while the lock is held, and the entries.
func (l *Ledger) sweep(r *reconciliation, doomed []*entry) error {
	failed := l.sweepHidden(&r.report)
	for _, e := range doomed {
		err := l.discard(e.ContainerID)
		failed = errors.Join(failed, err)
		switch {
		case err != nil && !errors.Is(err, errUnfinished):
			r.report.Failed = append(r.report.Failed, e.ContainerID)
		case e.state == StateCorrupt:
			r.report.CorruptRemoved = append(r.report.CorruptRemoved, e.ContainerID)
		default:
			r.report.Removed = append(r.report.Removed, e.ContainerID)
		}
	}
	return failed
}

func (l *Ledger) sweepHidden(report *Report) error {
	dirs, err := os.ReadDir(filepath.Join(l.dir, containersName))
	if err != nil {
		return fmt.Errorf("read the ledger's directories: %w", err)
	}
	var failed error
	for _, dir := range dirs {
		name := dir.Name()
		if !strings.HasPrefix(name, ".") {
			continue
		}
		if err := vgpufs.RemoveAll(filepath.Join(l.dir, containersName, name)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%w: remove %s: %w", errUnfinished, name, err))
			continue
		}
		report.Leftovers = append(report.Leftovers, name)
	}
	return failed
}

type Restored struct {
	Dir string
	// Overbooked is why Claim would refuse; the claim counts in any case.
	Overbooked error
}

// Restore reserves the claim of a live container if its directory or record was lost, released, or blocks,
// even if it does not fit. It replaces no other attempt. populate is called as by Claim, if the directory is
// gone or Block made it. A different active record is ErrConflict.
func (l *Ledger) Restore(ctx context.Context, claim Claim, gpus map[string]grant.GPU, populate func(dir string) error) (*Restored, error) {
	if err := claim.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", claim.holder(), err)
	}
	restored := &Restored{Dir: l.Dir(claim.ContainerID)}
	err := l.locked(ctx, func() error {
		if err := l.look(); err != nil {
			return err
		}
		old := l.index.entries[claim.ContainerID]
		if old != nil && old.state == StateActive {
			return cmp.Or(l.join(ctx, old, &claim, old.Members), l.unblocked(&claim))
		}
		return l.change(func(sequence uint64) error {
			if err := l.unblock(&claim); err != nil {
				return err
			}
			r := &record{Version: recordVersion, Sequence: sequence, Restored: true, Claim: claim.clone()}
			if old == nil || old.state == StateBlocking && old.Blocking.Bare {
				restored.Overbooked = l.wouldRefuse(&claim, gpus)
				return l.build(ctx, r, populate)
			}
			l.index.drop(claim.ContainerID) // read again if the next fails
			restored.Overbooked = l.wouldRefuse(&claim, gpus)
			return l.reactivate(r)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", claim.holder(), err)
	}
	return restored, nil
}

func (l *Ledger) wouldRefuse(claim *Claim, gpus map[string]grant.GPU) error {
	return cmp.Or(grant.CheckGPUs(claim.Shares, gpus), l.index.checkCapacity(claim, gpus, nil))
}

func (l *Ledger) reactivate(r *record) error {
	r.stampTime()
	if err := l.createTurns(r); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	if err := l.replaceRecord(r); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	if err := os.RemoveAll(filepath.Join(l.Dir(r.ContainerID), releasedName)); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	l.put(r)
	return nil
}
