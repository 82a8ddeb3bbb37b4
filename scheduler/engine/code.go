package engine

import "fmt"

// Code is the first check that a GPU failed, in HAMi's order.
type Code uint8

const (
	OK Code = iota
	CardNotHealth
	GPUCordoned
	GPUEmpty // gpuslice: no memory or no replicas registered
	CardTypeMismatch
	GPUMIGMode // gpuslice: MIG mode is not shared
	NumaNotFit
	CardUUIDMismatch
	CardTimeSlicingExhausted
	ExclusiveDeviceAllocateConflict
	ResourceQuotaNotFit
	CardInsufficientMemory
	CardInsufficientCore
	CardComputeUnitsExhausted
	// The codes below are of nodes.
	NodeInsufficientDevice // fewer GPUs than one container requests
	NodeUnregistered       // no GPUs registered, or unreadable
	codes
)

var names = [codes]string{"OK", "CardNotHealth", "GPUCordoned", "GPUEmpty", "CardTypeMismatch", "GPUMIGMode",
	"NumaNotFit", "GPUUuidMismatch", "CardTimeSlicingExhausted", "ExclusiveDeviceAllocateConflict", "ResourceQuotaNotFit", "CardInsufficientMemory",
	"CardInsufficientCore", "CardComputeUnitsExhausted", "NodeInsufficientDevice", "NodeUnregistered"}

// String returns HAMi's name.
func (c Code) String() string {
	if c >= codes {
		return fmt.Sprintf("Code(%d)", uint8(c))
	}
	return names[c]
}

var briefs = [codes]string{"fits", "GPUs are not healthy", "GPUs are cordoned", "GPUs have no memory or no replicas registered",
	"GPUs are of another type", "GPUs are in MIG mode",
	"no NUMA node has enough fitting GPUs", "GPUs are excluded by UUID", "GPUs have no free replica",
	"GPUs are in use, but exclusive use is requested", "the namespace's quota is used up", "GPUs have too little free memory",
	"GPUs have too few free cores", "GPUs have all cores taken", "the node has too few GPUs", "the node has no GPUs registered"}

// Brief has no numbers: kube-scheduler groups nodes by this text in events.
func (c Code) Brief() string {
	if c >= codes {
		return c.String()
	}
	return briefs[c]
}

// Counts counts a node's GPUs by reason.
type Counts [codes]uint16

// NodeCounts counts nodes by their main reason.
type NodeCounts [codes]int

// Main is the most frequent reason; among equals the later check.
func (c *Counts) Main() Code { return mostFrequent((*[codes]uint16)(c)) }

// Main is the most frequent reason; among equals the later check.
func (c *NodeCounts) Main() Code { return mostFrequent((*[codes]int)(c)) }

func mostFrequent[N uint16 | int](c *[codes]N) Code {
	main := OK
	for code := OK + 1; code < codes; code++ {
		if c[code] > 0 && c[code] >= c[main] {
			main = code
		}
	}
	return main
}

// Evictable reports whether evicting pods may help.
func (c *Counts) Evictable() bool {
	for _, code := range [...]Code{NumaNotFit, CardTimeSlicingExhausted, ExclusiveDeviceAllocateConflict, ResourceQuotaNotFit,
		CardInsufficientMemory, CardInsufficientCore, CardComputeUnitsExhausted} {
		if c[code] > 0 {
			return true
		}
	}
	return false
}
