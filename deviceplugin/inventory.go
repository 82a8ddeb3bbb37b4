package deviceplugin

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/gpu"
)

// Card is what the kubelet is told of a card.
type Card struct {
	UUID    string
	Healthy bool
	// NUMANode is the memory node that the card is next to, or gpu.NUMAUnknown.
	NUMANode int
}

// Inventory is a Source that is fed with looks at the node's cards. It has one
// writer, and any number of readers.
type Inventory struct {
	cards *watched[[]Card]
}

// NewInventory returns one without cards.
func NewInventory() *Inventory { return &Inventory{newWatched[[]Card](nil)} }

// Cards implements Source.
func (i *Inventory) Cards() ([]Card, <-chan struct{}) { return i.cards.get() }

// Update takes a look at the cards over. A card that was there once and is not, or can't
// be read, is unhealthy until it is back. All are while the node can't be read.
func (i *Inventory) Update(s gpu.Snapshot) {
	last, _ := i.cards.get()
	cards := make(map[string]Card, len(last))
	for _, c := range last {
		c.Healthy = false
		cards[c.UUID] = c
	}
	for _, f := range s.Node.Faults {
		if _, known := cards[f.UUID]; !known && f.UUID != "" {
			cards[f.UUID] = Card{UUID: f.UUID, NUMANode: gpu.NUMAUnknown}
		}
	}
	for _, c := range s.Node.Cards {
		cards[c.UUID] = Card{UUID: c.UUID, Healthy: s.Err == nil, NUMANode: c.NUMANode}
	}
	list := make([]Card, 0, len(cards))
	for _, c := range cards {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Card) int { return strings.Compare(a.UUID, b.UUID) })
	if !slices.Equal(list, last) {
		i.cards.set(list)
	}
}
