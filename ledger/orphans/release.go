package orphans

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/gpuslice/gpuslice/ledger"
)

// Releaser releases the claims of containers that do not exist any more.
type Releaser struct {
	Ledger *ledger.Ledger
	Judge  Judge
}

// Release releases a container's claim with that nonce ("": damaged record) if the container is gone. No claim
// is no error.
func (r Releaser) Release(ctx context.Context, id, nonce string, ended bool) error {
	return r.reconcile(ctx, false, func(dir string) bool {
		return filepath.Base(dir) == id && nonceOf(dir) == foundNonce(nonce) && !r.Judge.Alive(dir, ended)
	})
}

// Drop releases the claim of a container that was not created.
func (r Releaser) Drop(ctx context.Context, id, nonce string) error {
	return r.reconcile(ctx, false, func(dir string) bool {
		return filepath.Base(dir) == id && nonceOf(dir) == foundNonce(nonce) && nonce != ""
	})
}

// Sweep releases all orphans, and returns whether there were any. It only locks the ledger if there are.
func (r Releaser) Sweep(ctx context.Context, now *ledger.Snapshot) (bool, error) {
	gone := map[string]nonce{} // by directory
	unowned := false
	for _, e := range now.Entries {
		// An entry with an unreadable grant has no owner.
		if e.Owner != ledger.OwnerRuntime && e.Owner != "" || e.State == ledger.StateReleased || e.State == ledger.StateBlocking {
			continue
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx) // reading mounts can take long
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
		// A container that is gone does not return under the same nonce.
		n, judged := gone[dir]
		return judged && nonceOf(dir) == n && (n.text != "" || !r.Judge.Alive(dir, false))
	})
}

// nonce is the nonce of a record; empty if it is damaged.
type nonce struct {
	text  string
	found bool
}

func foundNonce(text string) nonce { return nonce{text, true} }

func nonceOf(dir string) nonce { return nonceIn(Read(dir)) }

func nonceIn(record Record, err error) nonce {
	if errors.Is(err, fs.ErrNotExist) {
		return nonce{}
	}
	return nonce{record.Nonce, err == nil || errors.Is(err, ErrDamaged)}
}

func (r Releaser) reconcile(ctx context.Context, unowned bool, gone func(dir string) bool) error {
	options := []ledger.ReconcileOption{ledger.WithLiveness(func(dir string) bool { return !gone(dir) })}
	if unowned {
		options = append(options, ledger.ForWholeNode())
	}
	_, err := r.Ledger.Reconcile(ctx, ledger.OwnerRuntime, nil, options...)
	return err
}
