package deviceplugin

import (
	"cmp"
	"slices"
)

type GPU struct {
	UUID    string
	Healthy bool
	// NUMANode is the nearest NUMA node, or nvidia.NUMAUnknown.
	NUMANode int
	Devices  int
}

// Inventory is a Source with one writer and any number of readers.
type Inventory struct {
	gpus *watched[[]GPU]
}

func NewInventory() *Inventory { return &Inventory{newWatched[[]GPU](nil)} }

func (i *Inventory) GPUs() ([]GPU, <-chan struct{}) { return i.gpus.get() }

// Set replaces the GPUs and notifies readers of a change.
func (i *Inventory) Set(gpus []GPU) {
	sorted := slices.SortedFunc(slices.Values(gpus), func(a, b GPU) int { return cmp.Compare(a.UUID, b.UUID) })
	if last, _ := i.gpus.get(); !slices.Equal(sorted, last) {
		i.gpus.set(sorted)
	}
}
