package partition

import (
	"slices"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// State is how far a MIG device has come. A record is written before each step, so that after a kill at any moment its state and what
// NVML lists show what is to be undone.
type State string

const (
	// Intended: the place was free, and the GPU instance is made next.
	Intended State = "intended"
	// Instance: the GPU instance is made, and its compute instance is made next.
	Instance State = "instance"
	// Made: both are made, and UUID is known.
	Made State = "made"
	// Used: the ResourceClaim is prepared.
	Used State = "used"
	// Destroying: the compute instance is destroyed next, or while it is in use.
	Destroying State = "destroying"
	// Emptied: the compute instance is destroyed, and the GPU instance is destroyed next.
	Emptied State = "emptied"
)

// Place is where on which GPU an instance of a profile lies.
type Place struct {
	GPU     string         `json:"gpu"`
	Profile int            `json:"profile"`
	At      hardware.Place `json:"at"`
}

// Record is the journal's entry of one place.
type Record struct {
	Place
	// Claim is the UID of the ResourceClaim; "": it has ended.
	Claim string `json:"claim"`
	// Boot is the kernel's boot_id: a reboot destroys instances.
	Boot  string `json:"boot"`
	State State  `json:"state"`
	// Instance and Compute are NVML's IDs, UUID is the MIG device's. They follow from the place on many GPUs, so that they
	// do not prove that an instance is the one that was made.
	Instance int    `json:"instance"`
	Compute  int    `json:"compute"`
	UUID     string `json:"uuid,omitempty"`
}

// Ending: it is to be undone.
func (r Record) Ending() bool { return r.Claim == "" || r.State != Made && r.State != Used }

// Step is what to do next to undo a record.
type Step int

const (
	// Forget the record: nothing of it is left, or what is there can't be proven to be its own.
	Forget Step = iota
	DestroyCompute
	DestroyInstance
)

// at returns the instance at the record's place; nil: none of its profile.
func (r Record) at(now []hardware.GPUInstance) *hardware.GPUInstance {
	i := slices.IndexFunc(now, func(g hardware.GPUInstance) bool { return g.Place == r.At && g.Profile == r.Profile })
	if i < 0 || r.State != Intended && now[i].ID != r.Instance {
		return nil
	}
	return &now[i]
}

// exists reports whether the MIG device that was made is there.
func (r Record) exists(boot string, now []hardware.GPUInstance) bool {
	found := r.at(now)
	return r.Boot == boot && found != nil && len(found.Compute) == 1 && found.Compute[0] == hardware.ComputeInstance{ID: r.Compute, UUID: r.UUID} && r.UUID != ""
}

// Undo returns the next step. An instance that has a compute instance is destroyed only if the order of the steps proves that it is the
// record's: a GPU instance is never destroyed before Emptied is written, and in Intended and Emptied the record's own GPU instance has no
// compute instance. So one that has was made by another program.
func (r Record) Undo(boot string, now []hardware.GPUInstance) Step {
	found := r.at(now)
	if r.Boot != boot || found == nil {
		return Forget
	}
	empty := len(found.Compute) == 0
	switch r.State {
	case Intended, Emptied:
		if empty {
			return DestroyInstance
		}
	case Instance:
		if empty {
			return DestroyInstance
		}
		if len(found.Compute) == 1 {
			return DestroyCompute
		}
	case Destroying:
		if empty {
			return DestroyInstance
		}
		if r.exists(boot, now) {
			return DestroyCompute
		}
	case Made, Used: // only Destroying, which is written after exists
	}
	return Forget
}
