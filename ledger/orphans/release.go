package orphans

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/gpuslice/gpuslice/ledger"
)

// Releaser gives claims back.
type Releaser struct {
	Ledger *ledger.Ledger
	Judge  Judge
}

// Release gives back the claim of a container if it is the one of that nonce and its
// container is gone. ended is Judge.Alive's. What is not there is fine. An empty nonce is
// of a claim whose record is damaged.
//
// It goes by the ledger's reconciliation, which asks under its lock: a claim that the
// same id got meanwhile stays.
func (r Releaser) Release(ctx context.Context, id, nonce string, ended bool) error {
	return r.reconcile(ctx, false, func(dir string) bool {
		return filepath.Base(dir) == id && nonceOf(dir) == known(nonce) && !r.Judge.Alive(dir, ended)
	})
}

// Drop gives back the claim of that nonce without asking for its container, of which
// nothing has been made.
func (r Releaser) Drop(ctx context.Context, id, nonce string) error {
	return r.reconcile(ctx, false, func(dir string) bool {
		return filepath.Base(dir) == id && nonceOf(dir) == known(nonce) && nonce != ""
	})
}

// Sweep gives back the claims whose containers are gone without a word. It looks at a
// snapshot first, so that the ledger is locked and changed only where there is something
// to do. It says whether there was.
func (r Releaser) Sweep(ctx context.Context, now *ledger.Snapshot) (bool, error) {
	gone := map[string]nonce{} // by directory
	unowned := false
	for _, e := range now.Entries {
		// One whose grant can't be read has no owner; ours have a record.
		if e.Owner != ledger.OwnerRuntime && e.Owner != "" || e.State == ledger.StateReleased || e.State == ledger.StateBlocking {
			continue
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx) // to look through mounts takes its time
		}
		dir := r.Ledger.Dir(e.ContainerID)
		record, err := Read(dir)
		if n := nonceIn(record, err); n.found && !r.Judge.alive(dir, false, record, err) {
			gone[dir] = n
			unowned = unowned || e.Owner == ""
		}
	}
	if len(gone) == 0 {
		return false, nil
	}
	return true, r.reconcile(ctx, unowned, func(dir string) bool {
		// Judged already, and what was gone doesn't come back under the same nonce.
		n, judged := gone[dir]
		return judged && nonceOf(dir) == n && (n.text != "" || !r.Judge.Alive(dir, false))
	})
}

// nonce is what a directory's record has; one that is damaged has an empty one.
type nonce struct {
	text  string
	found bool
}

func known(text string) nonce { return nonce{text, true} }

func nonceOf(dir string) nonce { return nonceIn(Read(dir)) }

func nonceIn(record Record, err error) nonce {
	if errors.Is(err, fs.ErrNotExist) {
		return nonce{}
	}
	return nonce{record.Nonce, err == nil || errors.Is(err, ErrDamaged)}
}

// reconcile gives back the claims of ours that are gone, and, if unowned, those of which
// nobody can read whose they are.
func (r Releaser) reconcile(ctx context.Context, unowned bool, gone func(dir string) bool) error {
	options := []ledger.ReconcileOption{ledger.WithLiveness(func(dir string) bool { return !gone(dir) })}
	if unowned {
		options = append(options, ledger.ForWholeNode())
	}
	_, err := r.Ledger.Reconcile(ctx, ledger.OwnerRuntime, nil, options...)
	return err
}
