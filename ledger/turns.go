package ledger

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuslice/gpuslice/limiter"
)

// createTurns precedes the claim: each share in a table has a turn file. A restored container has mounted its own.
func (l *Ledger) createTurns(r *record) error {
	if r.TurnID.OfSlice() || r.Blocking != nil {
		return nil
	}
	if err := l.holder.CreateTurns(l.dir, r.TurnGPUs(), r.TurnID, !r.Restored && !l.hasTurns(r)); err != nil {
		return fmt.Errorf("create the container's turn files: %w", err)
	}
	return nil
}

// hasTurns reports whether an entry of the container has the turn files: a released one, that is claimed again.
func (l *Ledger) hasTurns(r *record) bool {
	e := l.index.entries[r.ContainerID]
	return e != nil && e.TurnID == r.TurnID
}

func (l *Ledger) abandonTurns(r *record) {
	if !r.TurnID.OfSlice() && !r.Restored && !l.hasTurns(r) {
		_ = l.holder.RemoveTurns(l.dir, r.TurnGPUs(), r.TurnID) // the next repair tries again
	}
}

// publish writes the tables of the GPUs with changed claims, and then removes the turn files of removed ones. As the
// directory, they stay after a release: the container can still run, and be restored.
func (l *Ledger) publish() error {
	if err := l.writeTables(); err != nil {
		return err
	}
	for _, e := range l.index.dropped {
		// An entry without a turn ID can be of the same container.
		now := l.index.entries[e.ContainerID]
		if !e.TurnID.OfSlice() && (now == nil || now.TurnID != 0 && now.TurnID != e.TurnID) {
			_ = l.holder.RemoveTurns(l.dir, e.TurnGPUs(), e.TurnID) // the next repair tries again
		}
	}
	l.index.settled()
	return nil
}

func (l *Ledger) writeTables() error {
	var errs []error
	for gpu := range l.index.changed {
		errs = append(errs, l.writeTable(gpu))
	}
	return errors.Join(errs...)
}

func (l *Ledger) writeTable(gpu string) error {
	t := limiter.Table{FloorPercent: l.floor, Shares: make([]limiter.TableShare, 0, len(l.index.holders[gpu]))}
	for _, e := range l.index.holders[gpu] {
		for _, share := range e.Shares {
			if share.UUID == gpu {
				t.Shares = append(t.Shares, limiter.TableShare{
					ID: e.tableID(), CorePercent: share.CorePercent, SoftPercent: e.SoftPercent(share), Policy: e.CorePolicy, Priority: e.Priority(),
				})
			}
		}
	}
	err := l.tables.Write(limiter.TablePath(l.dir, gpu), t)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no container has turns on it
	}
	return err
}

// TrimTurns restores turn files that containers have changed: see limiter.Holder.
func (l *Ledger) TrimTurns(changed func(gpu string, id limiter.TurnID, err error)) error {
	return l.holder.TrimTurns(l.dir, changed)
}

// repairTurns writes all tables, and removes the turn files that belong to no claim and to no slice, if obsolete allows it.
func (l *Ledger) repairTurns(obsolete func(limiter.TurnID) bool) error {
	gpus, err := limiter.TurnGPUs(l.dir)
	errs := []error{err}
	for _, gpu := range gpus {
		errs = append(errs, l.writeTable(gpu))
	}
	claimed := map[limiter.TurnID]bool{}
	for _, e := range l.index.entries {
		claimed[e.TurnID] = true
	}
	errs = append(errs, limiter.EachTurn(l.dir, func(gpu string, id limiter.TurnID) {
		if !id.OfSlice() && !claimed[id] && obsolete(id) {
			_ = l.holder.RemoveTurns(l.dir, []string{gpu}, id) // the next repair tries again
		}
	}))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the shares for the containers: %w", err)
	}
	l.index.settled()
	return nil
}

func (x *index) settled() {
	clear(x.changed)
	x.dropped = nil
}

// Turns reads the turn files of the active claims, by GPU and container, without those that can't be read.
func (s *Snapshot) Turns(stateDir string) map[string]map[string]limiter.Turn {
	turns := map[string]map[string]limiter.Turn{}
	for _, c := range s.Claims() {
		for _, gpu := range c.TurnGPUs() {
			t, err := limiter.ReadTurn(stateDir, gpu, c.TurnID)
			if err != nil {
				continue
			}
			if turns[gpu] == nil {
				turns[gpu] = map[string]limiter.Turn{}
			}
			turns[gpu][c.ContainerID] = t
		}
	}
	return turns
}
