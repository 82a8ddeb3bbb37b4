// Package quota counts what namespaces may have and use of GPUs: Kubernetes' ResourceQuota on memory and
// cores, which Kubernetes can't enforce because the amounts are per GPU, and gpu-manager's quota of GPUs by
// namespace, model and pool, from a ConfigMap. Use is counted from placements and reservations only.
//
// Charge and Release change an Accounts; Account.Check and CheckNode decide.
package quota

import (
	"math"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Charge is what a pod takes of the quotas.
type Charge struct {
	// MemoryMiB and Cores are sums over all GPUs, for ResourceQuotas.
	MemoryMiB int64
	Cores     int64
	// GPUPercent is for gpu-manager's quota: 100 per GPU.
	GPUPercent int64
	// Model is the node's Labels.Model.
	Model string
}

// Of returns the charge of placed containers: the peak, counted like scheduler.Uses, over all GPUs. gpuMiB
// returns a GPU's memory; 0: unknown.
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

// Requested returns the charge of a request on GPUs of gpuMiB each. With 0 it is the minimum on any node.
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

// walk visits the containers in the order in which they start.
func walk(n int, kind func(i int) scheduler.Kind, visit func(i int)) {
	for _, apps := range []bool{false, true} {
		for i := range n {
			if (kind(i) == scheduler.App) == apps {
				visit(i)
			}
		}
	}
}

// GPUPercent is a share's part of a GPU: its cores; without a limit its memory, rounded up.
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

// Unlimited is no limit.
const Unlimited = math.MaxInt64

// Limits are a namespace's limits.
type Limits struct {
	MemoryMiB, Cores int64
}

// NoLimits has no limits.
var NoLimits = Limits{MemoryMiB: Unlimited, Cores: Unlimited}

func (l Limits) least(m Limits) Limits {
	return Limits{MemoryMiB: min(l.MemoryMiB, m.MemoryMiB), Cores: min(l.Cores, m.Cores)}
}
