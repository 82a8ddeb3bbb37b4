package deviceplugin

import (
	"cmp"
	"slices"
)

// GPU is what the kubelet is told of a GPU, or of a MIG device.
type GPU struct {
	UUID    string
	Healthy bool
	// NUMANode is the memory node that the GPU is next to, or gpu.NUMAUnknown.
	NUMANode int
	// Devices is how many devices of the resource the GPU has.
	Devices int
}

// Inventory is a Source that is told of the node's GPUs. It has one writer, and any
// number of readers.
type Inventory struct {
	gpus *watched[[]GPU]
}

// NewInventory returns one without GPUs.
func NewInventory() *Inventory { return &Inventory{newWatched[[]GPU](nil)} }

// GPUs implements Source.
func (i *Inventory) GPUs() ([]GPU, <-chan struct{}) { return i.gpus.get() }

// Set replaces the GPUs, and tells the readers where that changes anything.
func (i *Inventory) Set(gpus []GPU) {
	sorted := slices.SortedFunc(slices.Values(gpus), func(a, b GPU) int { return cmp.Compare(a.UUID, b.UUID) })
	if last, _ := i.gpus.get(); !slices.Equal(sorted, last) {
		i.gpus.set(sorted)
	}
}
