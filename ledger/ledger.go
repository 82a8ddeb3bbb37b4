// Package ledger stores the claims of a node's containers. [Open] it, reserve with Claim, and end a claim with
// Release and Remove. Several processes can use it, and a kill at any moment loses nothing.
package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
)

// Ledger is the node's store of claims: a directory for each container, on a tmpfs, shared by processes.
//
//	<dir>/lock                        flock'ed by readers and writers
//	<dir>/generation                  counts changes; odd: a change is in progress
//	<dir>/cordoned                    GPUs that get no new container (Cordon)
//	<dir>/containers/<id>/grant.json      the claim counts
//	<dir>/containers/<id>/released.json   the same file, renamed: it does not count
//	<dir>/containers/<id>/…               files of populate
//	<dir>/containers/.new-…, .old-…       a change in progress
//	<dir>/turns/<GPU>/table               the shares of the GPU, for its containers (limiter.Table)
//	<dir>/turns/<GPU>/<turn ID>           made with the claim, and removed with its directory
//
// One rename commits a change; after a kill before it, the next process removes the hidden directory. The tables are
// written after it; after a kill before that, the next process writes them. A Ledger caches the content. It is safe
// for concurrent use.
type Ledger struct {
	dir     string
	recover func(dir string) (Claim, error)
	// readOnly: scan changes nothing, for a Reader.
	readOnly bool

	// turn is the lock inside the process: flock works between open files.
	turn  chan struct{}
	files *ledgerFiles
	index *index
	// seen is the generation of the index; current: it is valid.
	seen    uint64
	current bool
	floor   int
	tables  limiter.TableWriter
	holder  *limiter.Holder
}

type Option func(*Ledger)

// WithRecovery sets a second source of a claim's shares, and of what belongs to them, if grant.json is unreadable.
// Without it, claims are refused until the entry is fixed or removed.
func WithRecovery(claim func(dir string) (Claim, error)) Option {
	return func(l *Ledger) { l.recover = claim }
}

// WithFloor sets the least percentage of a GPU's time for containers without a share, in the tables of all GPUs.
func WithFloor(percent int) Option {
	return func(l *Ledger) { l.floor = percent }
}

// WithHolder sets the holder of the turn files that the ledger makes.
func WithHolder(holder *limiter.Holder) Option {
	return func(l *Ledger) { l.holder = holder }
}

// Open opens the ledger in dir, and makes it if it is missing. It does not wait for the lock.
func Open(dir string, options ...Option) (*Ledger, error) {
	l := &Ledger{dir: dir, turn: make(chan struct{}, 1), index: newIndex()}
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

// Close closes the ledger's files. Claims stay.
func (l *Ledger) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.files.close()
}

// Claim reserves the claim and returns its directory. It refuses what does not fit into gpus, by UUID
// (ErrOverbooked, ErrUnknownGPU), a HAMi position of another container (ErrPositionTaken), the name of another
// command of the host (ErrNameTaken), a ResourceClaim of another container (ErrResourceClaimInUse), a cordoned GPU
// (ErrCordoned), and any claim while an entry is unreadable (ErrCorrupt) or blocks (ErrBlocked).
//
// populate, which can be nil, writes the container's other files into a directory that is renamed later. If it
// fails, or ctx ends, the ledger is unchanged. It is idempotent; a different claim is ErrConflict. A claim
// replaces earlier attempts of its container (same owner, pod UID and name). Their directories stay.
// A container joins an active common claim (Claim.Common), with cordons as for a new one: populate is not called.
func (l *Ledger) Claim(ctx context.Context, claim Claim, gpus map[string]grant.GPU, populate func(dir string) error) (dir string, err error) {
	if err := claim.validate(); err != nil {
		return "", fmt.Errorf("%s: %w", claim.holder(), err)
	}
	err = l.locked(ctx, func() error {
		old := l.index.entries[claim.ContainerID]
		if old != nil && old.state == StateActive {
			if err := l.checkJoin(old, &claim, gpus); err != nil {
				return err
			}
			return l.join(ctx, old, &claim, old.without(&claim))
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

func (l *Ledger) admit(claim *Claim, gpus map[string]grant.GPU) error {
	if err := grant.CheckGPUs(claim.Shares, gpus); err != nil {
		return err
	}
	if err := l.checkCordons(claim, gpus); err != nil {
		return err
	}
	return l.unlessStale(func() error { return l.index.admit(claim, gpus) })
}

// unlessStale calls admit. Before it refuses for an unreadable or blocking entry, it reads the directories again: an
// operator can have removed one.
func (l *Ledger) unlessStale(admit func() error) error {
	err := admit()
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBlocked) {
		return err
	}
	if err := l.look(); err != nil {
		return err
	}
	return admit()
}

func checkSame(claim, reserved *Claim) error {
	if !claim.sameAs(reserved) {
		return grant.Errorf(ErrConflict, "container id %s is already reserved for %s with %d shares: remove it first", claim.ContainerID, reserved.holder(), len(reserved.Shares))
	}
	return nil
}

// Room returns nil if shares fit now. What a container has of the same requests of ResourceClaims is regarded as free:
// it is the same. Errors are those of Claim; a cordon is none, because the shares are allocated already.
func (l *Ledger) Room(ctx context.Context, shares []grant.Share, resourceClaims []string, gpus map[string]grant.GPU) error {
	return l.locked(ctx, func() error {
		claim := Claim{Shares: shares, ResourceClaims: resourceClaims}
		if err := grant.CheckGPUs(shares, gpus); err != nil {
			return err
		}
		own := l.index.holdersOf(resourceClaims)
		return l.unlessStale(func() error {
			return cmp.Or(l.index.checkKnown(shares), l.index.checkCapacity(&claim, gpus, own))
		})
	})
}

// InUse returns whether a container has one of the requests of ResourceClaims.
func (l *Ledger) InUse(ctx context.Context, resourceClaims []string) (used bool, err error) {
	err = l.locked(ctx, func() error {
		used = len(l.index.holdersOf(resourceClaims)) > 0
		return nil
	})
	return used, err
}

// Release ends the claim, or a container's part in a common claim: that ends with its last container. Its directory
// stays, because the container can still map its files. An unknown ID is no error.
func (l *Ledger) Release(ctx context.Context, id string) error {
	return l.forEntry(ctx, "release", id, func(e *entry) error {
		if e.state == StateReleased {
			return nil
		}
		return l.change(func(uint64) error {
			if others, stays := e.leaves(id); stays {
				return l.remember(e, others)
			}
			if err := l.markReleased(e.ContainerID); err != nil {
				return err
			}
			l.index.release(e)
			return nil
		})
	})
}

// Remove removes the container's directory and its claim, or its part in a common claim. An unknown ID is no error.
func (l *Ledger) Remove(ctx context.Context, id string) error {
	return l.forEntry(ctx, "remove", id, func(e *entry) error {
		return l.change(func(uint64) error {
			if others, stays := e.leaves(id); stays {
				return l.remember(e, others)
			}
			return l.discard(e.ContainerID)
		})
	})
}

func (l *Ledger) forEntry(ctx context.Context, what, id string, fn func(*entry) error) error {
	err := ValidateContainerID(id)
	if err == nil {
		err = l.locked(ctx, func() error {
			if e := l.index.find(id); e != nil {
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

type Snapshot struct {
	Entries []Entry
	// GPUs are the sums by GPU UUID, without GPUs that have no claims.
	GPUs map[string]Usage
	// Unsettled: entries can be of different moments, because of a change in progress. Only for a Reader.
	Unsettled bool
}

func (s *Snapshot) Claims() (claims []Claim) {
	for _, e := range s.Entries {
		if e.State == StateActive {
			claims = append(claims, e.Claim)
		}
	}
	return claims
}

// Snapshot reads the ledger. Its shares must not be changed.
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

// Unplaced returns what containers have of each GPU that no scheduler has placed on it.
func (l *Ledger) Unplaced(ctx context.Context) (map[string]Usage, error) {
	var unplaced map[string]Usage
	err := l.locked(ctx, func() error {
		unplaced = l.index.unplaced()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read ledger %s: %w", l.dir, err)
	}
	return unplaced, nil
}

// Dir returns the path of a container's directory.
func (l *Ledger) Dir(id string) string { return DirOf(l.dir, id) }

// DirOf returns the path of a container's directory in the ledger in dir.
func DirOf(dir, id string) string { return filepath.Join(dir, containersName, id) }

// locked calls fn with the lock and a current index. It waits until ctx ends.
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

// acquire takes the flock, and opens the ledger's files again if they were replaced.
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
		_ = l.files.close() // the old files have no other user
		l.files, l.current = files, false
	}
}

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
		generation = 1 // damaged
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
	if interrupted {
		err = l.repairTurns(func(id limiter.TurnID) bool { return !id.Restorable() })
	} else {
		err = l.writeTables() // an operator can have removed an entry
	}
	if err != nil {
		return err
	}
	l.index.settled()
	if next != generation {
		if err := l.files.setGeneration(next); err != nil {
			return err
		}
	}
	l.seen, l.current = next, true
	return nil
}

func (l *Ledger) look() error {
	l.current = false
	return l.refresh()
}

// errUnfinished marks an error after which the files differ from the index. The generation stays odd, and the
// next process cleans up.
var errUnfinished = errors.New("the change is not finished")

// change calls fn between an odd and an even generation. If fn fails, it must have changed nothing, or return
// errUnfinished.
func (l *Ledger) change(fn func(sequence uint64) error) error {
	odd := l.seen + 1
	l.current = false
	if err := l.files.setGeneration(odd); err != nil {
		return err
	}
	err := fn(odd)
	if !errors.Is(err, errUnfinished) {
		if turns := l.publish(); turns != nil {
			err = errors.Join(err, errUnfinished, turns)
		}
	}
	// Without the even generation, the next reader reads everything again.
	if !errors.Is(err, errUnfinished) && l.files.setGeneration(odd+1) == nil {
		l.seen, l.current = odd+1, err == nil
	}
	return err
}

func (l *Ledger) build(ctx context.Context, r *record, populate func(dir string) error) (err error) {
	r.stampTime()
	hidden := l.hidden(newPrefix, r.ContainerID)
	defer func() {
		if err != nil {
			l.abandonTurns(r)
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
	if err := l.createTurns(r); err != nil {
		return err
	}
	if err := writeRecord(filepath.Join(hidden, recordName), r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("abandon the claim: %w", context.Cause(ctx))
	}
	if err := l.name(hidden, r.ContainerID); err != nil {
		return err
	}
	l.put(r)
	return nil
}

// put adds a written record to the index. Without a stamp it is read again.
func (l *Ledger) put(r *record) {
	e := newEntry(r)
	e.stamp, _ = readStamp(unix.AT_FDCWD, filepath.Join(l.Dir(r.ContainerID), recordName))
	l.index.put(e)
}

func (l *Ledger) supersede(r *record) {
	for _, old := range l.index.predecessors(&r.Claim) {
		_ = l.markReleased(old.ContainerID)
		l.index.release(old)
	}
}

// name renames the hidden directory to the container's ID: the claim counts now. It exchanges it with an
// existing one.
func (l *Ledger) name(hidden, id string) error {
	flags := uint(0)
	if l.index.entries[id] != nil {
		flags = unix.RENAME_EXCHANGE
	}
	if err := unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, l.Dir(id), flags); err != nil {
		return fmt.Errorf("rename the directory of container %s: %w", id, err)
	}
	if flags != 0 {
		_ = vgpufs.RemoveAll(hidden) // hidden entries are ignored, and the next reconciliation removes them
	}
	return nil
}

func (l *Ledger) discard(id string) error {
	hidden := l.hidden(oldPrefix, id)
	err := unix.Rename(l.Dir(id), hidden)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("move the directory of container %s away: %w", id, err)
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

// Kinds of errors, for errors.Is, beside those of package grant.
var (
	// ErrNameTaken: another command of the host has this name.
	ErrNameTaken = errors.New("name taken")
	// ErrPositionTaken: another container of the pod has this position of HAMi's annotation. The container can run
	// without a GPU.
	ErrPositionTaken = errors.New("position taken")
	// ErrResourceClaimInUse: a claim with other requests has the request of the ResourceClaim too.
	ErrResourceClaimInUse = errors.New("ResourceClaim in use")
	ErrConflict           = errors.New("conflicting claim")
	ErrNoClaim            = errors.New("no claim")
	ErrCordoned           = errors.New("GPU cordoned")
	// ErrCorrupt: an entry is unreadable, so the free amounts are not known.
	ErrCorrupt = errors.New("corrupt ledger")
	// ErrBlocked: a container with an unknown grant can hold the GPU (Ledger.Block).
	ErrBlocked = errors.New("blocked by a container with an unknown grant")
)
