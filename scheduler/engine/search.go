package engine

import (
	"math"

	"github.com/gpuslice/gpuslice/scheduler"
)

// searchSteps bounds the search for a pod of several containers on one node. It is enough
// for all ways where GPUs are alike, and not where each is different: then a pod may be
// refused that fits in a way that nobody would think of, and its text says that not all were tried.
const searchSteps = 2000

// Of an evaluation of many nodes, each part has its share of evaluationSteps, and once that
// is used up each node leastSteps: a pod that is made to be searched for long delays the
// others by little.
const (
	evaluationSteps = 400_000
	leastSteps      = 100
)

// retry is for a pod of several containers that does not fit in the usual order: in
// another order it may. The largest containers first is tried by the policy; then any way
// to serve them is looked for, for so many steps. o keeps the reasons of the first try.
func (f *fitter) retry(o *outcome) bool {
	if len(f.ask.needs) < 2 || !f.possible() {
		return false
	}
	f.clear()
	if f.enough() {
		var second outcome
		if f.serve(f.ask.bySize, &second) {
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

// possible says whether each need could be served if it were alone: else no order helps.
func (f *fitter) possible() bool {
	f.clear()
	for i := range f.ask.needs {
		var counts Counts
		f.gather(i, false, &counts)
		if len(f.candidates) < f.ask.needs[i].GPUs {
			return false
		}
	}
	return true
}

// enough says whether what runs together is no more than what is free of all GPUs together.
func (f *fitter) enough() bool {
	var free, wanted scheduler.Use
	smallest := int64(math.MaxInt64)
	for c, why := range f.usable {
		if why == OK {
			free = free.Add(f.n.gpus.total[c].Sub(f.n.used[c]).Max(scheduler.Use{}))
			smallest = min(smallest, f.n.gpus.total[c].MemoryMiB)
		}
	}
	for i := range f.ask.needs {
		if need := &f.ask.needs[i]; need.kind != scheduler.Init {
			for range need.GPUs {
				wanted = wanted.Add(need.Use(smallest))
			}
		}
	}
	return wanted.MemoryMiB <= free.MemoryMiB && wanted.Cores <= free.Cores && wanted.Slots <= free.Slots
}

// search serves the needs from the k-th of bySize on, from GPUs at or after the given
// one for the k-th, in any way that there is.
func (f *fitter) search(k, from int) bool {
	if k == len(f.ask.bySize) {
		return true
	}
	i := f.ask.bySize[k]
	need := &f.ask.needs[i]
	if len(f.given[i]) == need.GPUs {
		return f.search(k+1, f.first(k+1))
	}
	for c := from; c < len(f.loads); c++ {
		if f.steps--; f.steps < 0 {
			return false
		}
		if f.usable[c] != OK || f.ask.gpu.NUMABind() && len(f.given[i]) > 0 && f.numa(c) != f.numa(f.given[i][0]) || f.twin(c, from) {
			continue
		}
		if _, why := f.ask.check(&f.loads[c], i, &f.n.used[c], &f.n.gpus.total[c]); why != OK {
			continue
		}
		before := f.loads[c].most
		f.give(i, c)
		if f.search(k, c+1) {
			return true
		}
		f.take(i, c)
		f.loads[c].most = before
	}
	return false
}

// first is the first GPU to try for the k-th: of two containers that are the same, the
// second goes nowhere before the first.
func (f *fitter) first(k int) int {
	if k == len(f.ask.bySize) {
		return 0
	}
	if i := f.ask.bySize[k]; i > 0 && f.ask.bySize[k-1] == i-1 && f.ask.needs[i] == f.ask.needs[i-1] {
		return f.given[i-1][0]
	}
	return 0
}

func (f *fitter) numa(gpu int) int { return f.n.gpus.numa[gpu] }

// take is the reverse of give, but for the load's most.
func (f *fitter) take(i, gpu int) {
	l := &f.loads[gpu]
	for at, have := range l.needs {
		if have == i {
			l.needs = append(l.needs[:at], l.needs[at+1:]...)
			break
		}
	}
	f.given[i] = f.given[i][:len(f.given[i])-1]
}

// twin says that a GPU before this one, which was just tried and failed, is the same to
// this pod: it is not tried again.
func (f *fitter) twin(c, from int) bool {
	for b := from; b < c; b++ {
		if f.usable[b] == OK && len(f.loads[b].needs) == 0 && len(f.loads[c].needs) == 0 &&
			f.n.used[b] == f.n.used[c] && f.n.gpus.total[b] == f.n.gpus.total[c] && (!f.ask.gpu.NUMABind() || f.numa(b) == f.numa(c)) {
			return true
		}
	}
	return false
}
