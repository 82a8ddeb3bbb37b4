package grant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Report says what a reconciliation found and did. Ids are in order.
type Report struct {
	// Kept are the owner's entries that are live.
	Kept []string
	// Removed are the owner's entries that were not.
	Removed []string
	// Leftovers are the hidden folders of interrupted changes, removed.
	Leftovers []string
	// Corrupt are the entries that can't be read, whoever's they are. A live
	// one is for Restore. Another is left alone: it may be another owner's.
	Corrupt []string
}

// Reconcile removes every entry of the owner that is not in live, the ids of
// all containers that its runtime has, with a GPU or without. Other owners'
// entries are not touched. It trusts nothing that it remembers, so that the
// Snapshot after it tells which folders are there. On an error the rest was still
// tried.
func (l *Ledger) Reconcile(ctx context.Context, owner string, live []string) (*Report, error) {
	isLive := make(map[string]bool, len(live))
	for _, id := range live {
		isLive[id] = true
	}
	report := &Report{}
	err := l.locked(ctx, func() error {
		if err := l.look(); err != nil {
			return err
		}
		for id, e := range l.index.entries {
			switch {
			case e.Owner == owner && isLive[id]:
				report.Kept = append(report.Kept, id)
			case e.Owner == owner:
				report.Removed = append(report.Removed, id)
			case e.state == StateCorrupt:
				report.Corrupt = append(report.Corrupt, id)
			}
		}
		sort.Strings(report.Kept)
		sort.Strings(report.Removed)
		sort.Strings(report.Corrupt)
		return l.change(func(uint64) error { return l.sweep(report) })
	})
	if err != nil {
		return report, fmt.Errorf("reconcile the claims of %q: %w", owner, err)
	}
	return report, nil
}

// sweep removes what the report says, and all hidden folders: whoever makes one
// holds the lock as long as it is there.
func (l *Ledger) sweep(report *Report) error {
	var failed error
	for _, id := range report.Removed {
		failed = errors.Join(failed, l.discard(id))
	}
	folders, err := os.ReadDir(filepath.Join(l.dir, containersName))
	if err != nil {
		return errors.Join(failed, fmt.Errorf("read the ledger's folders: %w", err))
	}
	for _, folder := range folders {
		name := folder.Name()
		if !strings.HasPrefix(name, ".") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(l.dir, containersName, name)); err != nil {
			failed = errors.Join(failed, errUnfinished, err)
			continue
		}
		report.Leftovers = append(report.Leftovers, name)
	}
	sort.Strings(report.Leftovers)
	return failed
}

// Restored says how a claim was written down again.
type Restored struct {
	// Dir is the container's folder.
	Dir string
	// Overbooked is why the claim would have been refused, if it would have
	// been: the container is there, and counts all the same.
	Overbooked error
}

// Restore books the claim of a container that is live already: its folder was
// lost, or its record, or it was taken for stopped. It counts in any case, fits
// or not, and takes no other attempt's place. populate is called, as by Claim,
// if the folder is gone; the container itself still maps the files of the old one.
// A record that is there and says something else is ErrConflict.
func (l *Ledger) Restore(ctx context.Context, claim Claim, cards map[string]Card, populate func(dir string) error) (*Restored, error) {
	if err := claim.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", claim.holder(), err)
	}
	restored := &Restored{Dir: l.Folder(claim.ContainerID)}
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
			if old == nil {
				restored.Overbooked = l.wouldRefuse(&claim, cards)
				return l.build(ctx, r, populate)
			}
			l.index.drop(claim.ContainerID) // read again if the next fails
			restored.Overbooked = l.wouldRefuse(&claim, cards)
			return l.reactivate(r)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", claim.holder(), err)
	}
	return restored, nil
}

// wouldRefuse says why the claim would be refused if it was new.
func (l *Ledger) wouldRefuse(claim *Claim, cards map[string]Card) error {
	if err := CheckCards(claim.Shares, cards); err != nil {
		return err
	}
	return l.index.checkCapacity(claim, cards, nil)
}

// reactivate writes the record into the folder that is there, released or
// corrupt. A grant.json counts more than a released.json beside it.
func (l *Ledger) reactivate(r *record) error {
	if err := l.replaceRecord(r); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	if err := os.RemoveAll(filepath.Join(l.Folder(r.ContainerID), releasedName)); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	e := &entry{record: *r, state: StateActive}
	e.stamp, _ = readStamp(unix.AT_FDCWD, filepath.Join(l.Folder(r.ContainerID), recordName)) // a failure leaves none: it is read again
	l.index.put(e)
	return nil
}
