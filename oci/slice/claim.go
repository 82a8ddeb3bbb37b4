package slice

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/grant"
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
	ledger, err := grant.OpenLedger(stateDir, grant.WithRecovery(oci.RecoverShares))
	if err != nil {
		return rootAdvice(err)
	}
	defer ledger.Close()
	if err := vacate(ctx, ledger, stateDir, name); err != nil {
		return err
	}
	record, err := newClaimRecord(state, name)
	if err != nil {
		return err
	}
	dir := Folder(stateDir, name)
	if err := os.WriteFile(filepath.Join(dir, markName), nil, 0o600); err != nil {
		return err
	}
	_, err = ledger.Claim(ctx, s.claim(state.ID), s.capacities(), func(dir string) error {
		return fillClaim(dir, Folder(stateDir, name), record)
	})
	if err != nil {
		err = errors.Join(err, os.Remove(filepath.Join(dir, markName))) // the files are as they were
	}
	return err
}

// vacate refuses a slice that another container has. One that a container had whose end
// nobody told gets new files, for what that one wrote is not the next one's; and this
// creation, which has the old ones mounted, is refused for once.
func vacate(ctx context.Context, ledger *grant.Ledger, stateDir, name string) error {
	h, err := holderOf(ctx, stateDir, name)
	if err != nil {
		return err
	}
	if h == nil {
		if !marked(Folder(stateDir, name)) {
			return nil
		}
		if err := renew(Folder(stateDir, name)); err != nil {
			return err
		}
		return errors.New("a container had it and was killed with its runtime; that is cleared away now: start the container again")
	}
	if h.alive() {
		return fmt.Errorf("container %s has it, and a slice is one container's at a time%s", short(h.id), others(ctx, stateDir, name))
	}
	if err := giveBack(ctx, ledger, Folder(stateDir, name), h.id); err != nil {
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

// release gives a slice back for a container that is gone.
func release(ctx context.Context, stateDir, name, id string) error {
	if err := grant.ValidateContainerID(id); err != nil {
		return err
	}
	if !exists(filepath.Join(stateDir, "containers", id)) {
		return nil // never claimed, or given back
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return rootAdvice(err)
	}
	defer unlock()
	ledger, err := grant.OpenLedger(stateDir, grant.WithRecovery(oci.RecoverShares))
	if err != nil {
		return rootAdvice(err)
	}
	defer ledger.Close()
	if r, err := readClaim(ledger.Folder(id)); err != nil || r.Slice != name {
		return nil // it is somebody else's claim: the wrapper's, the agent's
	}
	return giveBack(ctx, ledger, Folder(stateDir, name), id)
}

// giveBack makes a slice free. The new files come first: once the claim is gone, the next
// container may come.
func giveBack(ctx context.Context, ledger *grant.Ledger, dir, id string) error {
	theirs, err := os.Lstat(filepath.Join(ledger.Folder(id), limitsName))
	if err == nil {
		if ours, err := os.Lstat(filepath.Join(dir, limitsName)); err == nil && os.SameFile(ours, theirs) {
			if err := renew(dir); err != nil {
				return err
			}
		}
	}
	return ledger.Remove(ctx, id)
}

// newClaimRecord describes a container by its first process.
func newClaimRecord(state rspec.State, name string) (claimRecord, error) {
	r := claimRecord{Nonce: rand.Text(), Roots: []string{}, Bundle: state.Bundle, Slice: name}
	var err, namespaceErr error
	r.Creator, err = identify(state.Pid)
	r.PIDNamespace, namespaceErr = pidNamespace()
	if err := errors.Join(err, namespaceErr); err != nil {
		return r, fmt.Errorf("look at the container's process %d: %w", state.Pid, err)
	}
	return r, nil
}

// fillClaim puts the slice's files into a claim's folder, so that the monitor, the CLI and
// a ledger that is rebuilt find them where every container's are.
func fillClaim(dir, sliceDir string, r claimRecord) error {
	for _, name := range []string{usageName, limitsName} {
		if err := os.Link(filepath.Join(sliceDir, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, claimName), append(data, '\n'), 0o600)
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
