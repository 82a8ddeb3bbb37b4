package grant

import "strings"

// Card is what one card may be booked for, after the node's scaling. A MIG device is a
// card too: with its own memory, all of its compute time, and one slot.
type Card struct {
	// UUID names the card as NVML does.
	UUID string
	// MemoryMiB is the device memory that may be granted, in MiB.
	MemoryMiB int64
	// CorePercent is the compute time that may be granted: 100 for a whole card.
	CorePercent int
	// Slots is how many containers may have a share of the card. 0 means none.
	Slots int
	// Parent is the card that a MIG device is of, whose cordon is the device's, too; empty
	// of a card, and where nobody said it.
	Parent string `json:",omitempty"`
}

// IsMIG says whether a UUID is a MIG device's.
func IsMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// CheckCards says whether the node has every card of the shares, whether each card is
// large enough when it is empty, and whether they are of one kind: a program sees either
// cards or a MIG device, so that who was given both was limited on one of them by
// chance. What is left of a card is the ledger's to say.
func CheckCards(shares []Share, cards map[string]Card) error {
	for _, share := range shares {
		if IsMIG(share.UUID) != IsMIG(shares[0].UUID) {
			return refuse(ErrMalformed, "cards and MIG devices (%s, %s) don't go together in one container: grant one or the other", shares[0].UUID, share.UUID)
		}
		card, ok := cards[share.UUID]
		if !ok {
			return refuse(ErrUnknownCard, "card %s: this node has no such card to share: compare the grant with gpuslice status on the node", share.UUID)
		}
		if share.MemoryMiB > card.MemoryMiB {
			return refuse(ErrOverbooked, "card %s: memory %d MiB asked, but the whole card may be booked for %d MiB: ask for less",
				share.UUID, share.MemoryMiB, card.MemoryMiB)
		}
		if share.CorePercent > card.CorePercent {
			return refuse(ErrOverbooked, "card %s: cores %d asked, but the whole card may be booked for %d: ask for less",
				share.UUID, share.CorePercent, card.CorePercent)
		}
	}
	return nil
}
