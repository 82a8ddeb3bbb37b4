package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// Ledger is the node's book of claims: one directory a container under
// <dir>/containers, on a tmpfs, shared by every process that opens it.
//
//	<dir>/lock                        flock'ed by whoever reads or changes
//	<dir>/generation                  counts changes; odd: one is under way
//	<dir>/cordoned                    GPUs that get no new container (Cordon)
//	<dir>/containers/<id>/grant.json      the claim counts
//	<dir>/containers/<id>/released.json   the same file, renamed: it counts no more
//	<dir>/containers/<id>/…               what populate put there
//	<dir>/containers/.new-…, .old-…       a change that is under way
//
// Each change becomes true by one rename. A process killed before it leaves a
// hidden directory and an odd generation, which the next one cleans up; a process
// killed after it has made the change. Nothing is synced to a disk: after a
// reboot the containers are gone, and so is their ledger.
//
// A Ledger keeps the content in memory and reads only what others changed since
// its last look, which the generation tells. It may be used by several goroutines.
type Ledger struct {
	dir     string
	recover func(dir string) ([]grant.Share, error)
	damage  func(error)
	// readOnly makes scan change nothing: it is a Reader's.
	readOnly bool

	// turn is the process's own lock: flock works between open files only, and
	// a mutex can't be given up when a context ends.
	turn  chan struct{}
	files *ledgerFiles
	index *index
	// seen is the generation that index is of; current says that it is.
	seen    uint64
	current bool
}

// Option changes how a ledger is opened.
type Option func(*Ledger)

// WithRecovery gives a second source for what a container holds, asked when its
// grant.json is unreadable: the directory's limits file says it too. Without one, or
// where it fails, claims are refused until the entry is written again or removed.
func WithRecovery(shares func(dir string) ([]grant.Share, error)) Option {
	return func(l *Ledger) { l.recover = shares }
}

// WithDamage is told of each record that was found damaged, whether it could be
// written again or not. It is called under the lock and must be quick.
func WithDamage(report func(error)) Option {
	return func(l *Ledger) { l.damage = report }
}

// Open opens the ledger in dir, which it makes if it is not there. It
// neither waits for the lock nor reads the entries.
func Open(dir string, options ...Option) (*Ledger, error) {
	l := &Ledger{dir: dir, turn: make(chan struct{}, 1), index: newIndex(), damage: func(error) {}}
	for _, option := range options {
		option(l)
	}
	files, err := openFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", dir, err)
	}
	l.files = files
	return l, nil
}

// Close gives the ledger's files back. What it holds stays.
func (l *Ledger) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.files.close()
}

// Claim books the claim and returns its directory. It refuses what does not fit
// into GPUs, the node's GPUs by UUID (ErrOverbooked, ErrUnknownGPU), a slot
// that another container of the pod has (ErrSlotTaken), everything as long as an
// entry can't be read (ErrCorrupt), what a container may hold whose grant is
// not known (ErrBlocked), and GPUs that are cordoned here (ErrCordoned).
//
// populate, which may be nil, writes the container's other files into the directory
// it is given. The directory has another name then, so that nothing in it may
// depend on its path. If populate fails, or anything else before the directory
// gets its name, the ledger is as before.
//
// The same claim again is answered with the directory that is there, without
// populate; another claim of the same container is ErrConflict. A claim takes
// the place of earlier attempts of its container (the same owner, pod UID and
// container name): they count no more, and their directories stay until Remove.
//
// A context that ends before the commit refuses the claim.
func (l *Ledger) Claim(ctx context.Context, claim Claim, gpus map[string]grant.GPU, populate func(dir string) error) (dir string, err error) {
	if err := claim.validate(); err != nil {
		return "", fmt.Errorf("%s: %w", claim.holder(), err)
	}
	err = l.locked(ctx, func() error {
		old := l.index.entries[claim.ContainerID]
		if old != nil && old.state == StateActive {
			return checkSame(&claim, &old.Claim)
		}
		if err := l.admit(&claim, gpus); err != nil {
			return err
		}
		return l.change(func(sequence uint64) error {
			r := &record{Version: recordVersion, Sequence: sequence, Claim: claim.clone()}
			if err := l.build(ctx, r, populate); err != nil {
				return err
			}
			l.supersede(r)
			return nil
		})
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", claim.holder(), err)
	}
	return l.Dir(claim.ContainerID), nil
}

// admit says whether the claim may be booked. Before it refuses for an entry that
// can't be read or blocks, it looks at the directories again: the refusal advises to
// remove one by hand, which no generation tells. For want of room it does not: a directory that
// somebody removed while its container runs would be given away.
func (l *Ledger) admit(claim *Claim, gpus map[string]grant.GPU) error {
	if err := grant.CheckGPUs(claim.Shares, gpus); err != nil {
		return err
	}
	if err := l.checkCordons(claim, gpus); err != nil {
		return err
	}
	err := l.index.admit(claim, gpus)
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBlocked) {
		return err
	}
	if err := l.look(); err != nil {
		return err
	}
	return l.index.admit(claim, gpus)
}

// checkSame refuses a claim that differs from the one that is booked already.
func checkSame(claim, booked *Claim) error {
	if !claim.sameAs(booked) {
		return grant.Errorf(ErrConflict, "container id %s is already booked for %s with %d shares: remove it first", claim.ContainerID, booked.holder(), len(booked.Shares))
	}
	return nil
}

// Release makes the container's claim count no more. Its directory stays, since
// the container may still map it. An unknown id is fine.
func (l *Ledger) Release(ctx context.Context, id string) error {
	return l.forEntry(ctx, "release", id, func(e *entry) error {
		if e.state == StateReleased {
			return nil
		}
		return l.change(func(uint64) error {
			if err := l.markReleased(id); err != nil {
				return err
			}
			l.index.release(e)
			return nil
		})
	})
}

// Remove takes the container's directory away, and its claim with it. An unknown
// id is fine.
func (l *Ledger) Remove(ctx context.Context, id string) error {
	return l.forEntry(ctx, "remove", id, func(*entry) error {
		return l.change(func(uint64) error { return l.discard(id) })
	})
}

// forEntry calls fn with the entry of the id, under the lock, if there is one.
func (l *Ledger) forEntry(ctx context.Context, what, id string, fn func(*entry) error) error {
	err := ValidateContainerID(id)
	if err == nil {
		err = l.locked(ctx, func() error {
			if e, ok := l.index.entries[id]; ok {
				return fn(e)
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("%s claim of container %s: %w", what, quote.Short(id), err)
	}
	return nil
}

// Snapshot is the ledger's content at one moment.
type Snapshot struct {
	// Entries are all directories, in the order of their ids.
	Entries []Entry
	// GPUs is what is booked by GPU UUID; a GPU without claims is not in it.
	GPUs map[string]Usage
	// Unsettled says that a change was under way all the while, or was interrupted
	// and not cleaned up: entries may be of different moments. Only a Reader's is.
	Unsettled bool
}

// Claims returns the claims that count.
func (s *Snapshot) Claims() (claims []Claim) {
	for _, e := range s.Entries {
		if e.State == StateActive {
			claims = append(claims, e.Claim)
		}
	}
	return claims
}

// Snapshot reads the ledger. The shares in it are the ledger's own: read only.
func (l *Ledger) Snapshot(ctx context.Context) (*Snapshot, error) {
	var snapshot *Snapshot
	err := l.locked(ctx, func() error {
		snapshot = l.index.snapshot()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read ledger %s: %w", l.dir, err)
	}
	return snapshot, nil
}

// Directory is where the container's files are, whether it has any or not.
func (l *Ledger) Dir(id string) string {
	return filepath.Join(l.dir, containersName, id)
}

// locked calls fn when this process and goroutine alone has the ledger and the
// index is current. It waits no longer than the context.
func (l *Ledger) locked(ctx context.Context, fn func() error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the ledger: %w", context.Cause(ctx))
	}
	defer func() { <-l.turn }()
	if err := l.acquire(ctx); err != nil {
		return err
	}
	defer l.files.unlock()
	if err := l.refresh(); err != nil {
		return err
	}
	return fn()
}

// acquire takes the flock. If the ledger's files are not those under its path
// any more (somebody removed the directory), it opens the new ones: two
// processes must never hold two different locks.
func (l *Ledger) acquire(ctx context.Context) error {
	for {
		if err := l.files.flock(ctx); err != nil {
			return err
		}
		if l.files.inPlace() {
			return nil
		}
		files, err := openFiles(l.dir)
		if err != nil {
			l.files.unlock()
			return fmt.Errorf("open ledger %s again: %w", l.dir, err)
		}
		_ = l.files.close() // old files that nobody else sees: nothing is lost
		l.files, l.current = files, false
	}
}

// refresh reads what others changed.
func (l *Ledger) refresh() error {
	generation, err := l.files.generation()
	if err != nil {
		return err
	}
	if l.current && generation == l.seen {
		return nil
	}
	l.current = false
	if generation > maxSequence {
		generation = 1 // not a count of ours: as if it was lost
	}
	interrupted := generation%2 == 1
	if err := l.scan(interrupted); err != nil {
		return err
	}
	// Even, and above every sequence in use, also if the counter was lost.
	next := generation
	for _, e := range l.index.entries {
		next = max(next, e.Sequence)
	}
	next += next % 2
	if next != generation {
		if err := l.files.setGeneration(next); err != nil {
			return err
		}
	}
	l.seen, l.current = next, true
	return nil
}

// look reads every directory again, whether the generation tells of a change or not.
func (l *Ledger) look() error {
	l.current = false
	return l.refresh()
}

// errUnfinished marks an error after which the files are not as the index says;
// the generation stays odd, and the next one to come cleans up.
var errUnfinished = errors.New("the change is not finished")

// change calls fn between an odd and an even generation. If fn fails it must
// have left everything as before, or answer errUnfinished.
func (l *Ledger) change(fn func(sequence uint64) error) error {
	odd := l.seen + 1
	l.current = false
	if err := l.files.setGeneration(odd); err != nil {
		return err
	}
	err := fn(odd)
	if !errors.Is(err, errUnfinished) {
		l.finish(odd + 1)
	}
	if err != nil {
		l.current = false // the directories may not be as this process thinks
	}
	return err
}

// finish marks the end of a change. If it can't, the generation is odd and the
// next look reads everything again, which costs time and loses nothing.
func (l *Ledger) finish(even uint64) {
	if err := l.files.setGeneration(even); err == nil {
		l.seen, l.current = even, true
	}
}

// build makes the record's directory and enters it into the index.
func (l *Ledger) build(ctx context.Context, r *record, populate func(dir string) error) (err error) {
	r.stampTime()
	hidden := l.hidden(newPrefix, r.ContainerID)
	defer func() {
		if err != nil {
			if cleanup := vgpufs.RemoveAll(hidden); cleanup != nil {
				err = fmt.Errorf("%w; %w: %w", err, errUnfinished, cleanup)
			}
		}
	}()
	if err := makeDir(hidden); err != nil {
		return err
	}
	if populate != nil {
		if err := populate(hidden); err != nil {
			return fmt.Errorf("write the container's files: %w", err)
		}
	}
	if err := writeRecord(filepath.Join(hidden, recordName), r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("give the claim up: %w", context.Cause(ctx))
	}
	if err := l.name(hidden, r.ContainerID); err != nil {
		return err
	}
	e := newEntry(r)
	e.stamp, _ = readStamp(unix.AT_FDCWD, filepath.Join(l.Dir(r.ContainerID), recordName)) // a failure leaves none: it is read again
	l.index.put(e)
	return nil
}

// supersede makes earlier attempts of the claim's container count no more. A
// record that can't be marked is not a fault: the rule says the same of it.
func (l *Ledger) supersede(r *record) {
	for _, old := range l.index.predecessors(&r.Claim) {
		_ = l.markReleased(old.ContainerID)
		l.index.release(old)
	}
}

// name gives the hidden directory its container's name: the moment from which the
// claim counts. A directory that has the name already, released or corrupt, changes
// places with it, so that there is always one of the two.
func (l *Ledger) name(hidden, id string) error {
	flags := uint(0)
	if l.index.entries[id] != nil {
		flags = unix.RENAME_EXCHANGE
	}
	if err := unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, l.Dir(id), flags); err != nil {
		return fmt.Errorf("name the directory of container %s: %w", id, err)
	}
	if flags != 0 {
		_ = vgpufs.RemoveAll(hidden) // hidden entries are ignored, and the next reconciliation removes them
	}
	return nil
}

// discard takes the container's directory away, if there is one, and its entry
// with it.
func (l *Ledger) discard(id string) error {
	hidden := l.hidden(oldPrefix, id)
	err := unix.Rename(l.Dir(id), hidden)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("take the directory of container %s away: %w", id, err)
	}
	l.index.drop(id)
	if err != nil {
		return nil
	}
	if err := vgpufs.RemoveAll(hidden); err != nil {
		return fmt.Errorf("%w: remove the directory of container %s: %w", errUnfinished, id, err)
	}
	return nil
}
