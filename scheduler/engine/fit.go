package engine

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// outcome is what the fit says of a node.
type outcome struct {
	// What the pod takes of its namespace's quotas (quota.Charge).
	memoryMiB         int64
	cores, gpuPercent int32
	score             int32
	counts            Counts
	// need is the container that could not be served, by its position in ask.needs;
	// together says that each container by itself could be, and gaveUp that not all ways to
	// serve all of them were tried.
	need     uint8
	together bool
	gaveUp   bool
	fits     bool
}

// fitter tries an ask on nodes. It has the memory that it takes, and is used by one
// goroutine at a time.
type fitter struct {
	ask *ask
	n   *node

	usable     []Code // by GPU; it may be the node's own: not to be changed
	ruled      []Code
	model      string // that was judged last
	typeFits   bool
	loads      []load  // by GPU
	given      [][]int // GPUs by need
	candidates []choose.Candidate
	chosen     []int
	after      []scheduler.Use
	links      []int
	steps      int  // of the search that is under way
	budget     int  // of steps, for the nodes to come
	frugal     bool // the smallest GPUs that will do, and not the policy's
}

var fitters = sync.Pool{New: func() any { return new(fitter) }}

func (a *ask) fitter() *fitter {
	f := fitters.Get().(*fitter)
	f.ask, f.budget = a, evaluationSteps
	f.model, f.typeFits = "", a.rules.TypeFits("")
	return f
}

func (f *fitter) release() {
	f.ask, f.n, f.usable = nil, nil, nil
	fitters.Put(f)
}

// fit says whether and how well the node can serve the ask; n is nil for one that is not known.
// Where it fits, f.given has the GPUs until the next fit.
func (f *fitter) fit(n *node) (o outcome) {
	if n == nil || len(n.gpus.total) == 0 {
		o.counts[NodeUnregistered] = 1
		return o
	}
	f.begin(n)
	if !f.serve(f.ask.order, &o) && !f.retry(&o) {
		return o
	}
	o.fits, o.counts = true, Counts{}
	f.rate(&o)
	return o
}

// frugally is fit, with the smallest GPUs that will do: for a namespace's quota.
func (f *fitter) frugally(n *node) outcome {
	f.frugal = true
	defer func() { f.frugal = false }()
	return f.fit(n)
}

// begin makes the fitter ready for a node.
func (f *fitter) begin(n *node) {
	f.n = n
	f.ready(n)
	f.loads = slices.Grow(f.loads[:0], len(f.usable))[:len(f.usable)]
	f.given = slices.Grow(f.given[:0], len(f.ask.needs))[:len(f.ask.needs)]
	f.clear()
}

// ready finds out which GPUs may be looked at at all.
func (f *fitter) ready(n *node) {
	f.usable = n.gpus.usable
	if !f.ask.ruled {
		return
	}
	f.ruled = f.ruled[:0]
	for i := range n.gpus.models {
		if model := n.gpus.models[i]; model != f.model { // most GPUs are like the one before
			f.model, f.typeFits = model, f.ask.rules.TypeFits(model)
		}
		f.ruled = append(f.ruled, usable(&n.gpus.inventory.GPUs[i], f.typeFits, &f.ask.rules))
	}
	f.usable = f.ruled
}

// clear takes everything back.
func (f *fitter) clear() {
	for i := range f.loads {
		f.loads[i].needs, f.loads[i].most = f.loads[i].needs[:0], scheduler.Use{}
	}
	for i := range f.given {
		f.given[i] = f.given[i][:0]
	}
}

// serve serves the needs one after the other, each as the policy has it best.
func (f *fitter) serve(order []int, o *outcome) bool {
	for _, i := range order {
		if !f.serveOne(i, o) {
			return false
		}
	}
	return true
}

// serveOne serves one need. An init container is served from the pod's own GPUs if they
// will do: it takes the least there.
func (f *fitter) serveOne(i int, o *outcome) bool {
	need := &f.ask.needs[i]
	o.counts, o.need = Counts{}, uint8(i)
	if len(f.loads) < need.GPUs {
		o.counts[NodeInsufficientDevice] = uint16(len(f.loads))
		return false
	}
	if need.kind == scheduler.Init && len(f.ask.needs) > 1 {
		f.gather(i, true, &o.counts)
		if f.choose(i) {
			return true
		}
		o.counts = Counts{}
	}
	f.gather(i, false, &o.counts)
	if f.choose(i) {
		return true
	}
	if fitting := len(f.candidates); fitting >= need.GPUs {
		o.counts[NumaNotFit] += uint16(fitting)
	}
	return false
}

// gather collects the GPUs that can serve the need; own says to look at those only that
// the pod has already.
func (f *fitter) gather(i int, own bool, counts *Counts) {
	need, gpus, mutex := &f.ask.needs[i], f.n.gpus, f.ask.gpu.Mutex()
	f.candidates = slices.Grow(f.candidates[:0], len(f.loads))
	for c := range f.loads {
		l := &f.loads[c]
		if own && len(l.needs) == 0 {
			continue
		}
		why, total, others := f.usable[c], &gpus.total[c], &f.n.used[c]
		if why == OK {
			_, why = f.ask.check(l, i, others, total)
		}
		if why != OK {
			counts[why]++
			continue
		}
		f.candidates = f.candidates[:len(f.candidates)+1]
		candidate := &f.candidates[len(f.candidates)-1]
		candidate.Position, candidate.NUMA, candidate.Total = c, gpus.numa[c], *total
		candidate.Need, candidate.Exclusive = need.Use(total.MemoryMiB), need.Exclusive(total.Cores)
		if candidate.Used = *others; !mutex {
			candidate.Used = others.Add(l.most)
		}
	}
}

// choose gives the need the best of the candidates.
func (f *fitter) choose(i int) (ok bool) {
	need := &f.ask.needs[i]
	among := len(f.candidates)
	if f.frugal {
		slices.SortStableFunc(f.candidates, func(a, b choose.Candidate) int { return cmp.Compare(a.Total.MemoryMiB, b.Total.MemoryMiB) })
		among = min(among, need.GPUs)
	}
	for ; !ok && among <= len(f.candidates); among++ {
		f.chosen, ok = choose.AppendGPUs(f.chosen[:0], f.ask.gpu, f.candidates[:among], f.n.gpus.inventory.Links, need.GPUs)
	}
	if !ok {
		return false
	}
	for _, k := range f.chosen {
		f.give(i, f.candidates[k].Position)
	}
	return true
}

// give books a GPU for a need.
func (f *fitter) give(i, gpu int) {
	l := &f.loads[gpu]
	most, _ := f.ask.moments(l, i, &f.n.used[gpu], &f.n.gpus.total[gpu])
	at, _ := slices.BinarySearch(l.needs, i)
	l.needs, l.most = slices.Insert(l.needs, at, i), most
	f.given[i] = append(f.given[i], gpu)
}

// rate scores the node with what was given.
func (f *fitter) rate(o *outcome) {
	f.after, f.links = f.after[:0], f.links[:0]
	for c, used := range f.n.used {
		most := f.loads[c].most
		f.after = append(f.after, used.Add(most))
	}
	if links := f.n.gpus.inventory.Links; links != nil {
		for i, gpus := range f.given {
			if len(gpus) > 1 {
				f.links = choose.PairLinks(f.links, links, f.given[i])
			}
		}
	}
	f.charge(o)
	o.score = int32(choose.Node(f.ask.node, f.ask.weights, f.after, f.n.gpus.total, f.links...))
}

// charge adds up what was given as quota.Of does: ask.needs are in the order in which the
// containers start.
func (f *fitter) charge(o *outcome) {
	var running outcome
	for i := range f.ask.needs {
		need, now := &f.ask.needs[i], running
		for _, c := range f.given[i] {
			gpu := f.n.gpus.total[c].MemoryMiB
			mib := need.Memory(gpu)
			now.memoryMiB += mib
			now.cores += int32(need.Cores)
			now.gpuPercent += int32(quota.GPUPercent(need.Cores, mib, gpu))
		}
		o.memoryMiB, o.cores, o.gpuPercent = max(o.memoryMiB, now.memoryMiB), max(o.cores, now.cores), max(o.gpuPercent, now.gpuPercent)
		if need.kind != scheduler.Init {
			running = now
		}
	}
}

// shares writes what was given down by container of the pod.
func (f *fitter) shares(r *request.Request) [][]grant.Share {
	shares := make([][]grant.Share, len(r.Containers))
	for i, position := range positions(r) {
		for _, c := range f.given[i] {
			gpu, need := &f.n.gpus.inventory.GPUs[c], &f.ask.needs[i]
			shares[position] = append(shares[position], grant.Share{UUID: gpu.UUID, MemoryMiB: need.Memory(gpu.MemoryMiB), CorePercent: need.Cores})
		}
	}
	return shares
}
