package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// blocking replaces the shares in grant.json of a container with an unknown grant.
type blocking struct {
	Reason string `json:"reason"`
	// GPUs are those that the container can hold; none means all of the node.
	GPUs []string `json:"gpus,omitempty"`
	// Bare: Block made the directory, and it has no other files.
	Bare bool `json:"bare,omitempty"`
}

const maxReasonBytes = 1 << 10

func (b *blocking) problem() error {
	where := "on this node"
	if len(b.GPUs) > 0 {
		where = "on " + strings.Join(b.GPUs, ", ")
	}
	return grant.Errorf(ErrBlocked, "its grant can't be read; reserving nothing else %s: %s", where, b.Reason)
}

func (r *record) validateBlocking() error {
	if err := ValidateContainerID(r.ContainerID); err != nil {
		return err
	}
	if r.Owner == "" {
		return grant.Errorf(grant.ErrMalformed, "blocking entry without an owner")
	}
	if len(r.Shares) > 0 {
		return grant.Errorf(grant.ErrMalformed, "blocking entry with %d shares", len(r.Shares))
	}
	for _, uuid := range r.Blocking.GPUs {
		if err := grant.ValidateUUID(uuid); err != nil {
			return fmt.Errorf("uuid %s: %w", quote.Short(uuid), err)
		}
	}
	return nil
}

// Block adds an entry for a live container with an unreadable grant. Claims of its GPUs, or of all GPUs if
// none is named, are ErrBlocked until Restore, Release, Remove or a Reconcile of its owner. An entry with
// known shares stays; another Block updates the reason and the GPUs.
func (l *Ledger) Block(ctx context.Context, id, owner, reason string, gpus ...string) error {
	r := record{Version: recordVersion, Restored: true, Claim: Claim{ContainerID: id, Owner: owner}, Blocking: &blocking{
		Reason: strings.ToValidUTF8(reason[:min(len(reason), maxReasonBytes)], ""), GPUs: slices.Clone(gpus),
	}}
	err := r.validateBlocking()
	if err == nil {
		err = l.locked(ctx, func() error { return l.block(ctx, &r) })
	}
	if err != nil {
		return fmt.Errorf("block for container %s: %w", quote.Short(id), err)
	}
	return nil
}

func (l *Ledger) block(ctx context.Context, r *record) error {
	if err := l.look(); err != nil {
		return err
	}
	old := l.index.entries[r.ContainerID]
	switch {
	case old == nil:
		r.Blocking.Bare = true
	case old.state == StateActive, old.state == StateCorrupt && !old.unknown():
		return nil
	case old.state == StateBlocking:
		r.CreatedAt, r.Blocking.Bare = old.CreatedAt, old.Blocking.Bare
		if old.Owner == r.Owner && old.Blocking.Reason == r.Blocking.Reason && slices.Equal(old.Blocking.GPUs, r.Blocking.GPUs) {
			return nil
		}
	}
	return l.change(func(sequence uint64) error {
		r.Sequence = sequence
		if old == nil {
			return l.build(ctx, r, nil)
		}
		return l.reactivate(r)
	})
}
