package node

import (
	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
)

// Sharing is how a node's cards are shared.
type Sharing struct {
	// Slots is the number of containers that may share one card.
	Slots int
	// Memory and Cores are multiples of what a card has.
	Memory, Cores float64
	// MemoryMiB is taken for each card's memory in place of NVML's; 0: NVML's.
	MemoryMiB int64
	// MIG is how MIG devices are offered; empty is gpu.MIGNone.
	MIG gpu.MIGStrategy
	// Excludes says which cards are not to be shared, by UUID and NVML's index; nil:
	// all are.
	Excludes func(uuid string, index int) bool
}

// Device is what can be granted: a card, or a MIG device of one.
type Device struct {
	UUID string `json:"uuid"`
	// Card is the card that it is, or is of.
	Card string `json:"card"`
	// Resource is the last part of the resource that offers it, "mig-1g.10gb"; empty:
	// the ordinary one.
	Resource string `json:"resource,omitempty"`
	// MemoryMiB, CorePercent and Slots are what may be booked of it.
	MemoryMiB   int64 `json:"memoryMiB"`
	CorePercent int   `json:"cores"`
	Slots       int   `json:"slots"`
}

// MIG says whether it is a MIG device.
func (d Device) MIG() bool { return d.UUID != d.Card }

// Capacity is what may be booked of it, as the ledger wants it.
func (d Device) Capacity() grant.Card {
	c := grant.Card{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Slots: d.Slots}
	if d.MIG() {
		c.Parent = d.Card
	}
	return c
}

// Capacities are those of devices, by UUID.
func Capacities(devices []Device) map[string]grant.Card {
	cards := make(map[string]grant.Card, len(devices))
	for _, d := range devices {
		cards[d.UUID] = d.Capacity()
	}
	return cards
}

// Devices are what the node offers. The error is that of gpu.Node.Partition: then
// nothing is offered.
func (s Sharing) Devices(n gpu.Node) ([]Device, error) {
	strategy := s.MIG
	if strategy == "" {
		strategy = gpu.MIGNone
	}
	parts, err := s.shared(n).Partition(strategy)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(n.Cards))
	for _, c := range parts.Cards {
		devices = append(devices, s.whole(c))
	}
	for _, d := range parts.Single {
		devices = append(devices, s.slice(n, d, ""))
	}
	for _, resource := range parts.Resources() {
		for _, d := range parts.Mixed[resource] {
			devices = append(devices, s.slice(n, d, resource))
		}
	}
	return devices, nil
}

// shared is the node without the cards, and the MIG devices, that are not to be shared.
func (s Sharing) shared(n gpu.Node) gpu.Node {
	if s.Excludes == nil {
		return n
	}
	cards := n.Cards
	n.Cards = nil
	for _, c := range cards {
		if s.Excludes(c.UUID, c.Index) {
			continue
		}
		var mig []gpu.MIGDevice
		for _, d := range c.MIG {
			if !s.Excludes(d.UUID, -1) {
				mig = append(mig, d)
			}
		}
		c.MIG = mig
		n.Cards = append(n.Cards, c)
	}
	return n
}

// whole is a card that containers share.
func (s Sharing) whole(c gpu.Card) Device {
	memory := c.MemoryMiB
	if s.MemoryMiB != 0 {
		memory = s.MemoryMiB
	}
	return Device{
		UUID: c.UUID, Card: c.UUID,
		MemoryMiB: int64(float64(memory) * s.Memory), CorePercent: int(grant.MaxCorePercent * s.Cores), Slots: s.Slots,
	}
}

// slice is a MIG device: one container's alone, with all that it has. Compute instances
// of one GPU instance have its memory in common; each may have its part.
func (s Sharing) slice(n gpu.Node, d gpu.MIGDevice, resource string) Device {
	_, card, _ := n.MIGDevice(d.UUID)
	common := int64(0)
	for _, other := range card.MIG {
		if other.GPUInstance == d.GPUInstance {
			common++
		}
	}
	return Device{
		UUID: d.UUID, Card: d.Card, Resource: resource,
		MemoryMiB: d.MemoryMiB / max(common, 1), CorePercent: grant.MaxCorePercent, Slots: 1,
	}
}
