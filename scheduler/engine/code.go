package engine

import "fmt"

// Code is why a card can't serve a container. A card that fails for several reasons has the
// first of them, in the order of the constants: HAMi's.
type Code uint8

// The codes. OK is no reason.
const (
	OK Code = iota
	CardNotHealth
	CardCordoned
	CardEmpty // ours: a card that has no memory, or no slots, to give
	CardTypeMismatch
	CardMIGMode // ours: a card in MIG mode is not shared by us
	NumaNotFit
	CardUUIDMismatch
	CardTimeSlicingExhausted
	ExclusiveDeviceAllocateConflict
	ResourceQuotaNotFit
	CardInsufficientMemory
	CardInsufficientCore
	CardComputeUnitsExhausted
	// The rest are of nodes, not of a card.
	NodeInsufficientDevice // the node has fewer cards than one container wants
	NodeUnregistered       // no cards are registered, or they can't be read
	codes
)

var names = [codes]string{"OK", "CardNotHealth", "CardCordoned", "CardEmpty", "CardTypeMismatch", "CardMIGMode", "NumaNotFit", "CardUuidMismatch",
	"CardTimeSlicingExhausted", "ExclusiveDeviceAllocateConflict", "ResourceQuotaNotFit", "CardInsufficientMemory",
	"CardInsufficientCore", "CardComputeUnitsExhausted", "NodeInsufficientDevice", "NodeUnregistered"}

// String is HAMi's name of the reason, as in its events and metrics.
func (c Code) String() string {
	if c >= codes {
		return fmt.Sprintf("Code(%d)", uint8(c))
	}
	return names[c]
}

var briefs = [codes]string{"fits", "cards are not healthy", "cards are cordoned", "cards have no memory or no slots registered",
	"cards are of another type", "cards are in MIG mode",
	"no NUMA node has enough fitting cards", "cards are not those asked for by UUID", "cards have no free slot",
	"cards are in use and an exclusive one is asked for", "the namespace's quota is used up", "cards have too little free memory",
	"cards have too few free cores", "cards have all cores taken", "the node has too few cards", "the node has no cards registered"}

// Brief says the reason in a few words without numbers, the same for all nodes: what
// kube-scheduler counts nodes by in a pod's event.
func (c Code) Brief() string {
	if c >= codes {
		return c.String()
	}
	return briefs[c]
}

// Counts is how many of a node's cards have failed by which reason.
type Counts [codes]uint16

// Main is the reason that most cards have; of equals, the later one in the order of the
// checks: that card came nearest to being given. OK where there is none.
func (c *Counts) Main() Code {
	main := OK
	for code := OK + 1; code < codes; code++ {
		if c[code] > 0 && c[code] >= c[main] {
			main = code
		}
	}
	return main
}

// Evictable says whether other pods are in the way on some card at least: then evicting
// some may change the verdict.
func (c *Counts) Evictable() bool {
	for _, code := range [...]Code{NumaNotFit, CardTimeSlicingExhausted, ExclusiveDeviceAllocateConflict, ResourceQuotaNotFit,
		CardInsufficientMemory, CardInsufficientCore, CardComputeUnitsExhausted} {
		if c[code] > 0 {
			return true
		}
	}
	return false
}
