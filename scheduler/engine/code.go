package engine

import "fmt"

// Code is why a GPU can't serve a container. A GPU that fails for several reasons has the
// first of them, in the order of the constants: HAMi's.
type Code uint8

// The codes. OK is no reason.
const (
	OK Code = iota
	CardNotHealth
	GPUCordoned
	GPUEmpty // ours: a GPU that has no memory, or no slots, to give
	CardTypeMismatch
	GPUMIGMode // ours: a GPU in MIG mode is not shared by us
	NumaNotFit
	CardUUIDMismatch
	CardTimeSlicingExhausted
	ExclusiveDeviceAllocateConflict
	ResourceQuotaNotFit
	CardInsufficientMemory
	CardInsufficientCore
	CardComputeUnitsExhausted
	// The rest are of nodes, not of a GPU.
	NodeInsufficientDevice // the node has fewer GPUs than one container wants
	NodeUnregistered       // no GPUs are registered, or they can't be read
	codes
)

var names = [codes]string{"OK", "CardNotHealth", "GPUCordoned", "GPUEmpty", "CardTypeMismatch", "GPUMIGMode", "NumaNotFit", "GPUUuidMismatch",
	"CardTimeSlicingExhausted", "ExclusiveDeviceAllocateConflict", "ResourceQuotaNotFit", "CardInsufficientMemory",
	"CardInsufficientCore", "CardComputeUnitsExhausted", "NodeInsufficientDevice", "NodeUnregistered"}

// String is HAMi's name of the reason, as in its events and metrics.
func (c Code) String() string {
	if c >= codes {
		return fmt.Sprintf("Code(%d)", uint8(c))
	}
	return names[c]
}

var briefs = [codes]string{"fits", "GPUs are not healthy", "GPUs are cordoned", "GPUs have no memory or no slots registered",
	"GPUs are of another type", "GPUs are in MIG mode",
	"no NUMA node has enough fitting GPUs", "GPUs are not those asked for by UUID", "GPUs have no free slot",
	"GPUs are in use and an exclusive one is asked for", "the namespace's quota is used up", "GPUs have too little free memory",
	"GPUs have too few free cores", "GPUs have all cores taken", "the node has too few GPUs", "the node has no GPUs registered"}

// Brief says the reason in a few words without numbers, the same for all nodes: what
// kube-scheduler counts nodes by in a pod's event.
func (c Code) Brief() string {
	if c >= codes {
		return c.String()
	}
	return briefs[c]
}

// Counts is how many of a node's GPUs have failed by which reason.
type Counts [codes]uint16

// Main is the reason that most GPUs have; of equals, the later one in the order of the
// checks: that GPU came nearest to being given. OK where there is none.
func (c *Counts) Main() Code {
	main := OK
	for code := OK + 1; code < codes; code++ {
		if c[code] > 0 && c[code] >= c[main] {
			main = code
		}
	}
	return main
}

// Evictable says whether other pods are in the way on some GPU at least: then evicting
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
