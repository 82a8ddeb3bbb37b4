package quota

import (
	"math"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Charge is what a pod takes of its namespace's quotas. The zero value takes nothing.
type Charge struct {
	// MemoryMiB and Cores are count × amount, of all its GPUs together: what the resource
	// quotas limit.
	MemoryMiB int64
	Cores     int64
	// GPUPercent is what gpu-manager's quota limits: 100 for a GPU.
	GPUPercent int64
	// Model is the node's label of it (Labels.Model), the key of gpu-manager's quota.
	Model string
}

// Of is the charge of a pod with these containers that is given these shares, on a node
// of that model. gpuMiB tells the memory of a GPU; 0: not known.
//
// It counts as Kubernetes counts a pod's resources: sidecars and ordinary containers run
// together; an init container runs before them, beside the sidecars that were started
// before it. The charge is the most of any of these moments, whichever GPUs they are of.
func Of(containers []scheduler.Container, shares [][]grant.Share, model string, gpuMiB func(uuid string) int64) Charge {
	most, running := Charge{Model: model}, Charge{}
	walk(len(containers), func(i int) scheduler.Kind { return containers[i].Kind }, func(i int) {
		if i >= len(shares) {
			return
		}
		c := Charge{}
		for _, s := range shares[i] {
			c = c.add(Charge{MemoryMiB: s.MemoryMiB, Cores: int64(s.CorePercent), GPUPercent: GPUPercent(s.CorePercent, s.MemoryMiB, gpuMiB(s.UUID))})
		}
		most.peak(running.add(c))
		if containers[i].Kind != scheduler.Init {
			running = running.add(c)
		}
	})
	return most
}

// Asked is the charge of a request on GPUs that have so many MiB each: before there is a
// placement. With 0 MiB it is the least that any placement takes, exact in what the pod
// doesn't ask for by percent: a pod that doesn't fit that fits on no node.
func Requested(r *request.Request, model string, gpuMiB int64) Charge {
	most, running := Charge{Model: model}, Charge{}
	walk(len(r.Containers), func(i int) scheduler.Kind { return r.Kinds[i] }, func(i int) {
		a := &r.Containers[i]
		n, mib, percent := int64(a.GPUs), a.Memory(gpuMiB), int64(a.Cores)
		if a.GPUs > 0 && a.Cores == 0 && gpuMiB > 0 {
			percent = GPUPercent(0, mib, gpuMiB)
		}
		c := running.add(Charge{MemoryMiB: n * mib, Cores: n * int64(a.Cores), GPUPercent: n * percent})
		most.peak(c)
		if r.Kinds[i] != scheduler.Init {
			running = c
		}
	})
	return most
}

// walk visits a pod's containers in the order in which they start: those of
// spec.initContainers, then the others.
func walk(n int, kind func(i int) scheduler.Kind, visit func(i int)) {
	for _, apps := range []bool{false, true} {
		for i := range n {
			if (kind(i) == scheduler.App) == apps {
				visit(i)
			}
		}
	}
}

// GPUPercent is how much of a GPU a share is to gpu-manager's quota: its cores. One that
// is not limited in compute time counts by its memory, rounded up; all of the GPU where
// its memory isn't known.
func GPUPercent(cores int, mib, gpuMiB int64) int64 {
	switch {
	case cores > 0:
		return int64(cores)
	case gpuMiB <= 0 || mib >= gpuMiB:
		return 100
	}
	return (mib*100 + gpuMiB - 1) / gpuMiB
}

func (c Charge) add(d Charge) Charge {
	return Charge{MemoryMiB: c.MemoryMiB + d.MemoryMiB, Cores: c.Cores + d.Cores, GPUPercent: c.GPUPercent + d.GPUPercent, Model: c.Model}
}

func (c *Charge) peak(d Charge) {
	c.MemoryMiB, c.Cores, c.GPUPercent = max(c.MemoryMiB, d.MemoryMiB), max(c.Cores, d.Cores), max(c.GPUPercent, d.GPUPercent)
}

// Unlimited is a limit that nothing reaches.
const Unlimited = math.MaxInt64

// Limits are what a resource quota gives a namespace.
type Limits struct {
	// MemoryMiB and Cores are of all GPUs together; Unlimited: not limited.
	MemoryMiB, Cores int64
}

// NoLimits limit nothing.
var NoLimits = Limits{MemoryMiB: Unlimited, Cores: Unlimited}

// least is the lower of each.
func (l Limits) least(m Limits) Limits {
	return Limits{MemoryMiB: min(l.MemoryMiB, m.MemoryMiB), Cores: min(l.Cores, m.Cores)}
}
