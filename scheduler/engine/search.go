package engine

import (
	"math"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

// searchSteps covers all combinations on identical GPUs. On mixed ones a pod that fits may be rejected; the
// message states it.
const searchSteps = 2000

// Limits of one evaluation: chunks share evaluationSteps, then each node has leastSteps.
const (
	evaluationSteps = 400_000
	leastSteps      = 100
)

// retry places several containers largest first, then in any combination. o keeps the first reasons.
func (f *fitter) retry(o *outcome) bool {
	if len(f.req.containers) < 2 || !f.eachFits() {
		return false
	}
	f.clear()
	if f.fitsInTotal() {
		var second outcome
		if f.assignAll(f.req.bySize, &second) {
			return true
		}
		f.clear()
		allowed := min(searchSteps, max(f.budget, leastSteps))
		f.steps = allowed
		found := f.search(0, 0)
		f.budget -= allowed - max(f.steps, 0)
		if found {
			return true
		}
		o.gaveUp = f.steps < 0
	}
	o.together = true
	return false
}

func (f *fitter) eachFits() bool {
	f.clear()
	for i := range f.req.containers {
		var counts Counts
		f.collectCandidates(i, false, &counts)
		if len(f.candidates) < f.req.containers[i].GPUs {
			return false
		}
	}
	return true
}

// fitsInTotal compares sums over all GPUs.
func (f *fitter) fitsInTotal() bool {
	var free, wanted scheduler.Use
	smallest := int64(math.MaxInt64)
	for c, reason := range f.usable {
		if reason == OK {
			free = free.Add(f.n.gpus.total[c].Sub(f.n.used[c]).Max(scheduler.Use{}))
			smallest = min(smallest, f.n.gpus.total[c].MemoryMiB)
		}
	}
	for i := range f.req.containers {
		if container := &f.req.containers[i]; container.kind != scheduler.Init {
			for range container.GPUs {
				wanted = wanted.Add(container.Use(smallest))
			}
		}
	}
	return wanted.MemoryMiB <= free.MemoryMiB && wanted.Cores <= free.Cores && wanted.Replicas <= free.Replicas
}

// search assigns the containers from bySize[k] on, the k-th to GPUs from position from on.
func (f *fitter) search(k, from int) bool {
	if k == len(f.req.bySize) {
		return true
	}
	i := f.req.bySize[k]
	container := &f.req.containers[i]
	switch {
	case container.kind == scheduler.Init: // whichever GPUs it gets, the other containers can have the same
		var ignored outcome
		if f.steps--; f.assignContainer(i, &ignored) && f.search(k+1, 0) {
			return true
		}
		for len(f.assigned[i]) > 0 {
			f.unassign(i, f.assigned[i][len(f.assigned[i])-1])
		}
		return false
	case len(f.assigned[i]) == container.GPUs:
		return f.search(k+1, f.firstGPU(k+1))
	}
	for c := from; c < len(f.loads); c++ {
		if f.steps--; f.steps < 0 {
			return false
		}
		if f.usable[c] != OK || f.req.gpu.NUMABind && len(f.assigned[i]) > 0 && f.numa(c) != f.numa(f.assigned[i][0]) ||
			f.sameAsEarlier(c, from) {
			continue
		}
		if _, reason := f.req.check(&f.loads[c], i, &f.n.used[c], &f.n.gpus.total[c]); reason != OK {
			continue
		}
		f.assign(i, c)
		if f.search(k, c+1) {
			return true
		}
		f.unassign(i, c)
	}
	return false
}

// firstGPU keeps identical containers in ascending order.
func (f *fitter) firstGPU(k int) int {
	if k == len(f.req.bySize) {
		return 0
	}
	if i := f.req.bySize[k]; i > 0 && f.req.bySize[k-1] == i-1 && f.req.containers[i] == f.req.containers[i-1] {
		return f.assigned[i-1][0]
	}
	return 0
}

func (f *fitter) numa(gpu int) int { return f.n.gpus.numa[gpu] }

// unassign undoes the container's latest assign.
func (f *fitter) unassign(i, gpu int) {
	l := &f.loads[gpu]
	if at, found := slices.BinarySearch(l.containers, i); found {
		l.containers = slices.Delete(l.containers, at, at+1)
	}
	l.most = f.req.peak(l.containers, &f.n.used[gpu], &f.n.gpus.total[gpu])
	f.assigned[i] = f.assigned[i][:len(f.assigned[i])-1]
}

// sameAsEarlier: an identical GPU has just failed.
func (f *fitter) sameAsEarlier(c, from int) bool {
	for b := from; b < c; b++ {
		if f.usable[b] == OK && len(f.loads[b].containers) == 0 && len(f.loads[c].containers) == 0 &&
			f.n.used[b] == f.n.used[c] && f.n.gpus.total[b] == f.n.gpus.total[c] && (!f.req.gpu.NUMABind || f.numa(b) == f.numa(c)) {
			return true
		}
	}
	return false
}
