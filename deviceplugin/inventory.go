package deviceplugin

import (
	"maps"
	"slices"

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

// Update takes a look at the cards over. A card that is gone is unhealthy until it is
// back.
func (i *Inventory) Update(s gpu.Snapshot) {
	last, _ := i.cards.get()
	numa := make(map[string]int, len(last))
	for _, c := range last {
		numa[c.UUID] = c.NUMANode
	}
	for _, c := range s.Node.Cards {
		numa[c.UUID] = c.NUMANode
	}
	cards := make([]Card, 0, len(s.Health))
	for _, uuid := range slices.Sorted(maps.Keys(s.Health)) {
		c := Card{UUID: uuid, Healthy: s.Health[uuid].Healthy, NUMANode: gpu.NUMAUnknown}
		if node, known := numa[uuid]; known {
			c.NUMANode = node
		}
		cards = append(cards, c)
	}
	if !slices.Equal(cards, last) {
		i.cards.set(cards)
	}
}
