package grant

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
}

// CheckCards says whether the node has every card of the shares, and whether
// each card is large enough when it is empty. What is left of it is the
// ledger's to say.
func CheckCards(shares []Share, cards map[string]Card) error {
	for _, share := range shares {
		card, ok := cards[share.UUID]
		if !ok {
			return refuse(ErrUnknownCard, `card %s: this node has no such card: check the grant against "nvidia-smi -L" on the node`, share.UUID)
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
