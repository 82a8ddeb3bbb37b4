package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// Report says what a reconciliation found and did. Ids are in order.
type Report struct {
	// Kept are the owner's entries that are live.
	Kept []string
	// Unlisted are the owner's entries that the runtime does not list and whose
	// container lives all the same. They count on.
	Unlisted []string
	// Removed are the owner's entries that were neither.
	Removed []string
	// Failed are the entries that should have been removed and could not be. The
	// error says why; they are as they were.
	Failed []string
	// Leftovers are the hidden directories of interrupted changes, removed.
	Leftovers []string
	// Corrupt are the entries that can't be read, whoever's they are. A live
	// one is for Restore. Another is left alone: it may be another owner's.
	Corrupt []string
	// CorruptRemoved are the unreadable entries of containers that are gone, removed.
	// Only a reconciliation for the whole node removes them.
	CorruptRemoved []string
}

// ReconcileOption says more of what a reconciliation knows.
type ReconcileOption func(*reconciliation)

// WithLiveness gives a second opinion on entries that count and are not listed,
// asked by the container's directory before they are removed: containerd lists no
// container whose state it can't find out, and that may be running. It is called
// under the lock and must be quick.
func WithLiveness(alive func(dir string) bool) ReconcileOption {
	return func(r *reconciliation) { r.alive = alive }
}

// ForWholeNode says that the list has all containers of the node that can hold a
// GPU, whoever's they are. Unreadable entries, whose owner nobody knows, are then
// removed if their containers are not listed and, by WithLiveness, not alive;
// without that one they stay.
func ForWholeNode() ReconcileOption {
	return func(r *reconciliation) { r.wholeNode = true }
}

// reconciliation is one call of Reconcile.
type reconciliation struct {
	owner     string
	live      map[string]bool
	alive     func(dir string) bool // may be nil
	wholeNode bool
	report    Report
}

// Reconcile removes every entry of the owner that is not in live, the ids of
// all containers that its runtime has, with a GPU or without, and not alive by
// WithLiveness. Other owners' entries are not touched. It trusts nothing that it
// remembers, so that the Snapshot after it tells which directories are there. An error
// on one entry keeps no other from being handled: all are reported.
func (l *Ledger) Reconcile(ctx context.Context, owner string, live []string, options ...ReconcileOption) (*Report, error) {
	r := &reconciliation{owner: owner, live: make(map[string]bool, len(live))}
	for _, option := range options {
		option(r)
	}
	for _, id := range live {
		r.live[id] = true
	}
	err := l.locked(ctx, func() error {
		if err := l.look(); err != nil {
			return err
		}
		doomed := l.judge(r)
		return l.change(func(uint64) error { return l.sweep(r, doomed) })
	})
	if err != nil {
		return &r.report, fmt.Errorf("reconcile the claims of %q: %w", owner, err)
	}
	return &r.report, nil
}

// judge reports the entries that stay and returns those that go.
func (l *Ledger) judge(r *reconciliation) (doomed []*entry) {
	for _, id := range slices.Sorted(maps.Keys(l.index.entries)) {
		e := l.index.entries[id]
		nobodys := e.Owner == "" // its record can't be read
		switch {
		case e.state == StateCorrupt && !r.isGone(e, l.Dir(id)):
			r.report.Corrupt = append(r.report.Corrupt, id)
		case nobodys && (r.live[id] || !r.wholeNode), !nobodys && e.Owner != r.owner:
			// It counts for nothing, or is another's.
		case r.live[id]:
			r.report.Kept = append(r.report.Kept, id)
		case e.counts() && r.alive != nil && r.alive(l.Dir(id)):
			r.report.Unlisted = append(r.report.Unlisted, id)
		default:
			doomed = append(doomed, e)
		}
	}
	return doomed
}

// isGone says whether the container of an unreadable entry is surely gone.
func (r *reconciliation) isGone(e *entry, dir string) bool {
	return r.wholeNode && !r.live[e.ContainerID] && r.alive != nil && !r.alive(dir)
}

// sweep removes all hidden directories, for whoever makes one holds the lock as long
// as it is there, and then the entries.
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

// sweepHidden removes the hidden directories.
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

// Restored says how a claim was written down again.
type Restored struct {
	// Dir is the container's directory.
	Dir string
	// Overbooked is why the claim would have been refused, if it would have
	// been: the container is there, and counts all the same.
	Overbooked error
}

// Restore books the claim of a container that is live already: its directory was
// lost, or its record, or it was taken for stopped, or blocks. It counts in any case, fits
// or not, and takes no other attempt's place. populate is called, as by Claim,
// if the directory is gone or Block made it; the container itself still maps the files of the old one.
// A record that is there and says something else is ErrConflict.
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
			return checkSame(&claim, &old.Claim)
		}
		return l.change(func(sequence uint64) error {
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

// wouldRefuse says why the claim would be refused if it was new.
func (l *Ledger) wouldRefuse(claim *Claim, gpus map[string]grant.GPU) error {
	if err := grant.CheckGPUs(claim.Shares, gpus); err != nil {
		return err
	}
	return l.index.checkCapacity(claim, gpus, nil)
}

// reactivate writes the record into the directory that is there, released, corrupt
// or blocking. A grant.json counts more than a released.json beside it.
func (l *Ledger) reactivate(r *record) error {
	r.stampTime()
	if err := l.replaceRecord(r); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	if err := os.RemoveAll(filepath.Join(l.Dir(r.ContainerID), releasedName)); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	e := newEntry(r)
	e.stamp, _ = readStamp(unix.AT_FDCWD, filepath.Join(l.Dir(r.ContainerID), recordName)) // a failure leaves none: it is read again
	l.index.put(e)
	return nil
}
