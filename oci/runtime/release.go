package ociruntime

import (
	"context"
	"path/filepath"

	"github.com/gpuslice/gpuslice/grant"
)

// releaser gives claims back.
type releaser struct {
	ledger *grant.Ledger
	judge  judge
}

// release gives back the claim of a container if it is the one of that nonce and its
// container is gone. ended is judge.alive's. What is not there is fine.
//
// It goes by the ledger's reconciliation, which asks under its lock: a claim that the
// same id got meanwhile stays.
func (r releaser) release(ctx context.Context, id, nonce string, ended bool) error {
	return r.reconcile(ctx, func(dir string) bool {
		if filepath.Base(dir) != id {
			return false
		}
		record, err := readRecord(dir)
		return err == nil && record.Nonce == nonce && !r.judge.alive(dir, ended)
	})
}

// drop gives back the claim of that nonce without asking for its container, of which
// nothing has been made.
func (r releaser) drop(ctx context.Context, id, nonce string) error {
	return r.reconcile(ctx, func(dir string) bool {
		record, err := readRecord(dir)
		return filepath.Base(dir) == id && err == nil && record.Nonce == nonce
	})
}

// sweep gives back the claims whose containers are gone without a word: those of
// runtimes, shims and daemons that were killed. It looks at the snapshot first, so that
// the ledger is locked and changed only where there is something to do. It says whether
// there was.
func (r releaser) sweep(ctx context.Context, now *grant.Snapshot) (bool, error) {
	gone := map[string]string{} // nonces by folder
	for _, e := range now.Entries {
		if e.Owner != grant.OwnerRuntime || e.State != grant.StateActive {
			continue
		}
		dir := r.ledger.Folder(e.ContainerID)
		record, err := readRecord(dir)
		if err == nil && !r.judge.alive(dir, false) {
			gone[dir] = record.Nonce
		}
	}
	if len(gone) == 0 {
		return false, nil
	}
	return true, r.reconcile(ctx, func(dir string) bool {
		record, err := readRecord(dir)
		// Judged already, and what was gone doesn't come back under the same nonce.
		return err == nil && gone[dir] == record.Nonce
	})
}

// reconcile gives back the claims of ours that are gone.
func (r releaser) reconcile(ctx context.Context, gone func(dir string) bool) error {
	_, err := r.ledger.Reconcile(ctx, grant.OwnerRuntime, nil,
		grant.WithLiveness(func(dir string) bool { return !gone(dir) }))
	return err
}
