package grant

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Resize gives the container of an active claim other amounts of the cards that it has,
// while it runs. The shares name the same cards in the same order. It refuses what does
// not fit (ErrOverbooked, ErrUnknownCard), other cards, a part of a MIG device
// (ErrMalformed), and a container that holds nothing (ErrNoClaim). Who asks for less of something is
// never refused for want of room, also on a card that is overbooked or gone. Cores without a limit
// (0) book none and are the most, which is to be had where others leave any.
//
// apply brings the container's limits in the folder to those of the claim that it is
// given. It is called twice: with the lower of the old and the new amounts before the
// change is booked, and with the new ones after it, so that at no moment, and after a
// kill at any moment, a container is let have what is not booked for it. It has to be
// idempotent. The change counts from the rename of grant.json between the two.
//
// If apply fails the first time, the ledger is as before; if it fails the second time, the
// change is booked and the error says so: the container has less than it could until
// Resize is called again. The same amounts again call apply again.
func (l *Ledger) Resize(ctx context.Context, id string, shares []Share, cards map[string]Card, apply func(dir string, claim Claim) error) (before []Share, err error) {
	err = ValidateContainerID(id)
	if err == nil {
		err = ValidateShares(shares)
	}
	if err == nil {
		err = l.locked(ctx, func() error {
			before, err = l.resize(ctx, id, shares, cards, apply)
			return err
		})
	}
	if err != nil {
		return before, fmt.Errorf("resize container %s: %w", show(id), err)
	}
	return before, nil
}

func (l *Ledger) resize(ctx context.Context, id string, shares []Share, cards map[string]Card, apply func(dir string, claim Claim) error) ([]Share, error) {
	e := l.index.entries[id]
	if e == nil || e.state != StateActive {
		return nil, refuse(ErrNoClaim, "it has no share that counts: has it ended? gpuslice status lists those that have one")
	}
	before := e.Shares
	if err := checkSameCards(before, shares); err != nil {
		return before, err
	}
	if err := l.admitResize(e, shares, cards); err != nil {
		return before, err
	}
	if err := ctx.Err(); err != nil {
		return before, fmt.Errorf("give it up: %w", context.Cause(ctx))
	}
	return before, l.change(func(uint64) error { return l.rebook(e, shares, apply) })
}

// admitResize says whether the claim may have the shares in place of its own. As admit, it
// looks again before it refuses for an entry that somebody may have removed by hand.
func (l *Ledger) admitResize(e *entry, shares []Share, cards map[string]Card) error {
	err := l.index.admitResize(e, shares, cards)
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBlocked) {
		return err
	}
	if err := l.look(); err != nil {
		return err
	}
	return l.index.admitResize(e, shares, cards)
}

// rebook is the change itself.
func (l *Ledger) rebook(e *entry, shares []Share, apply func(dir string, claim Claim) error) error {
	folder, old := l.Folder(e.ContainerID), e.Claim
	least, next := e.record, e.record
	least.Claim, next.Claim = old.clone(), old.clone()
	least.Shares, next.Shares = lowest(old.Shares, shares), shares
	undo := func(err error) error {
		if undone := apply(folder, old.clone()); undone != nil {
			return fmt.Errorf("%w; and its limits may be lower than what is booked: %w", err, undone)
		}
		return err
	}
	if err := apply(folder, least.clone()); err != nil {
		return undo(fmt.Errorf("change its limits: %w", err))
	}
	if err := l.replaceRecord(&next); err != nil {
		return undo(err)
	}
	now := newEntry(&next)
	now.stamp, _ = readStamp(unix.AT_FDCWD, folder+"/"+recordName) // a failure leaves none: it is read again
	l.index.put(now)
	if err := apply(folder, next.clone()); err != nil {
		return fmt.Errorf("it is booked, and the container has the lower of both until this is done again: change its limits: %w", err)
	}
	return nil
}

// checkSameCards says whether the shares are of the same cards in the same order: the
// container has their devices and their places in its two files.
func checkSameCards(old, shares []Share) error {
	if len(old) != len(shares) {
		return refuse(ErrMalformed, "%d cards: it has %d, and keeps them as long as it runs", len(shares), len(old))
	}
	for i, share := range shares {
		switch {
		case share.UUID != old[i].UUID:
			return refuse(ErrMalformed, "share %d: card %s: it has %s there, and keeps its cards as long as it runs", i, share.UUID, old[i].UUID)
		case share != old[i] && IsMIG(share.UUID):
			return refuse(ErrMalformed, "share %d: %s is a MIG device, which a container has whole", i, share.UUID)
		}
	}
	return nil
}

// admitResize says whether what the shares have more than the entry is free.
func (x *index) admitResize(e *entry, shares []Share, cards map[string]Card) error {
	var more []Share
	for i, share := range shares {
		if old := e.Shares[i]; share.MemoryMiB > old.MemoryMiB || share.CorePercent > old.CorePercent || unlimits(old, share) {
			// What it has already is its own, fits or not.
			more = append(more, Share{UUID: share.UUID, MemoryMiB: max(0, share.MemoryMiB-old.MemoryMiB), CorePercent: max(0, share.CorePercent-old.CorePercent)})
		}
	}
	if len(more) == 0 {
		return nil
	}
	if err := CheckCards(more, cards); err != nil {
		return err
	}
	if err := x.checkKnown(more); err != nil {
		return err
	}
	for _, share := range more {
		card, used := cards[share.UUID], x.cards[share.UUID]
		if lack := lacking(share, card, used); lack != "" {
			return refuse(ErrOverbooked, "card %s: %s more than it has; containers that hold the card: %d (gpuslice status on the node lists them); wait until one of them ends, or ask for less",
				share.UUID, lack, used.Slots)
		}
	}
	for i, share := range shares {
		card, others := cards[share.UUID], x.cards[share.UUID].CorePercent-e.Shares[i].CorePercent
		if unlimits(e.Shares[i], share) && card.CorePercent > 0 && others >= card.CorePercent {
			return refuse(ErrOverbooked, "card %s: cores without a limit (0) are of what is left, and others have %d of %d %%; wait until one of them ends, or ask for less",
				share.UUID, others, card.CorePercent)
		}
	}
	return nil
}

// unlimits says whether cores that were limited are to be it no more.
func unlimits(old, share Share) bool { return share.CorePercent == 0 && old.CorePercent > 0 }

// lacking says what of memory and cores is not free; empty: nothing.
func lacking(share Share, card Card, used Usage) string {
	switch {
	case share.MemoryMiB > 0 && share.MemoryMiB > card.MemoryMiB-used.MemoryMiB:
		return fmt.Sprintf("memory %d MiB asked, %d of %d MiB free", share.MemoryMiB, max(0, card.MemoryMiB-used.MemoryMiB), card.MemoryMiB)
	case share.CorePercent > 0 && share.CorePercent > card.CorePercent-used.CorePercent:
		return fmt.Sprintf("cores %d %% asked, %d of %d %% free", share.CorePercent, max(0, card.CorePercent-used.CorePercent), card.CorePercent)
	}
	return ""
}

// lowest are the shares with the lower of both amounts; 0 cores are not limited, and so the most.
func lowest(a, b []Share) []Share {
	least := make([]Share, len(a))
	for i := range a {
		least[i] = Share{UUID: a[i].UUID, MemoryMiB: min(a[i].MemoryMiB, b[i].MemoryMiB), CorePercent: min(a[i].CorePercent, b[i].CorePercent)}
		if least[i].CorePercent == 0 {
			least[i].CorePercent = max(a[i].CorePercent, b[i].CorePercent)
		}
	}
	return least
}
