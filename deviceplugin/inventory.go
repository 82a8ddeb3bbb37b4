package deviceplugin

import (
	"cmp"
	"slices"
)

// Card is what the kubelet is told of a card, or of a MIG device.
type Card struct {
	UUID    string
	Healthy bool
	// NUMANode is the memory node that the card is next to, or gpu.NUMAUnknown.
	NUMANode int
	// Devices is how many devices of the resource the card has.
	Devices int
}

// Inventory is a Source that is told of the node's cards. It has one writer, and any
// number of readers.
type Inventory struct {
	cards *watched[[]Card]
}

// NewInventory returns one without cards.
func NewInventory() *Inventory { return &Inventory{newWatched[[]Card](nil)} }

// Cards implements Source.
func (i *Inventory) Cards() ([]Card, <-chan struct{}) { return i.cards.get() }

// Set replaces the cards, and tells the readers where that changes anything.
func (i *Inventory) Set(cards []Card) {
	sorted := slices.SortedFunc(slices.Values(cards), func(a, b Card) int { return cmp.Compare(a.UUID, b.UUID) })
	if last, _ := i.cards.get(); !slices.Equal(sorted, last) {
		i.cards.set(sorted)
	}
}
