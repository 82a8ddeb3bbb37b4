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

type outcome struct {
	// As in quota.Charge.
	memoryMiB         int64
	cores, gpuPercent int32
	score             int32
	counts            Counts
	// container could not be served. together: each container fits by itself; gaveUp: not all combinations
	// were tried.
	container uint8
	together  bool
	gaveUp    bool
	fits      bool
}

// fitter fits a request on nodes, with reusable buffers. One goroutine at a time uses it.
type fitter struct {
	req *compiled
	n   *node

	usable     []Code // by GPU; read-only: may be the node's
	ruled      []Code
	model      string // the last one evaluated
	typeFits   bool
	loads      []gpuLoad // by GPU
	assigned   [][]int   // GPUs by container
	candidates []choose.Candidate
	chosen     []int
	after      []scheduler.Use
	links      []int
	steps      int  // left in this search
	budget     int  // search steps left for more nodes
	smallest   bool // smallest GPUs first, instead of the policy
}

var fitters = sync.Pool{New: func() any { return new(fitter) }}

func (a *compiled) fitter() *fitter {
	f := fitters.Get().(*fitter)
	f.req, f.budget = a, evaluationSteps
	f.model, f.typeFits = "", a.rules.TypeFits("")
	return f
}

func (f *fitter) release() {
	f.req, f.n, f.usable = nil, nil, nil
	fitters.Put(f)
}

// fit accepts nil for an unknown node. If it fits, f.assigned is valid until the next call.
func (f *fitter) fit(n *node) (o outcome) {
	if n == nil || len(n.gpus.total) == 0 {
		o.counts[NodeUnregistered] = 1
		return o
	}
	f.reset(n)
	if !f.assignAll(f.req.order, &o) && !f.retry(&o) {
		return o
	}
	o.fits, o.counts = true, Counts{}
	f.score(&o)
	return o
}

// fitSmallest is fit with the smallest GPUs, to stay within a quota.
func (f *fitter) fitSmallest(n *node) outcome {
	f.smallest = true
	defer func() { f.smallest = false }()
	return f.fit(n)
}

func (f *fitter) reset(n *node) {
	f.n = n
	f.setUsable(n)
	f.loads = slices.Grow(f.loads[:0], len(f.usable))[:len(f.usable)]
	f.assigned = slices.Grow(f.assigned[:0], len(f.req.containers))[:len(f.req.containers)]
	f.clear()
}

func (f *fitter) setUsable(n *node) {
	f.usable = n.gpus.usable
	if !f.req.ruled {
		return
	}
	f.ruled = f.ruled[:0]
	for i := range n.gpus.models {
		if model := n.gpus.models[i]; model != f.model { // most GPUs have the same model
			f.model, f.typeFits = model, f.req.rules.TypeFits(model)
		}
		f.ruled = append(f.ruled, usable(&n.gpus.inventory.GPUs[i], f.typeFits, &f.req.rules))
	}
	f.usable = f.ruled
}

func (f *fitter) clear() {
	for i := range f.loads {
		f.loads[i].containers, f.loads[i].most = f.loads[i].containers[:0], scheduler.Use{}
	}
	for i := range f.assigned {
		f.assigned[i] = f.assigned[i][:0]
	}
}

func (f *fitter) assignAll(order []int, o *outcome) bool {
	for _, i := range order {
		if !f.assignContainer(i, o) {
			return false
		}
	}
	return true
}

// assignContainer prefers the pod's own GPUs for an init container.
func (f *fitter) assignContainer(i int, o *outcome) bool {
	container := &f.req.containers[i]
	o.counts, o.container = Counts{}, uint8(i)
	if len(f.loads) < container.GPUs {
		o.counts[NodeInsufficientDevice] = uint16(len(f.loads))
		return false
	}
	if container.kind == scheduler.Init && len(f.req.containers) > 1 {
		f.collectCandidates(i, true, &o.counts)
		if f.chooseGPUs(i) {
			return true
		}
		o.counts = Counts{}
	}
	f.collectCandidates(i, false, &o.counts)
	if f.chooseGPUs(i) {
		return true
	}
	if fitting := len(f.candidates); fitting >= container.GPUs {
		o.counts[NumaNotFit] += uint16(fitting)
	}
	return false
}

// collectCandidates collects the GPUs for the container; own: only GPUs that the pod already has.
func (f *fitter) collectCandidates(i int, own bool, counts *Counts) {
	container, gpus, mutex := &f.req.containers[i], f.n.gpus, f.req.gpu.Mutex
	f.candidates = slices.Grow(f.candidates[:0], len(f.loads))
	for c := range f.loads {
		l := &f.loads[c]
		if own && len(l.containers) == 0 {
			continue
		}
		reason, total, others := f.usable[c], &gpus.total[c], &f.n.used[c]
		if reason == OK {
			_, reason = f.req.check(l, i, others, total)
		}
		if reason != OK {
			counts[reason]++
			continue
		}
		f.candidates = f.candidates[:len(f.candidates)+1]
		candidate := &f.candidates[len(f.candidates)-1]
		candidate.Position, candidate.NUMA, candidate.Total = c, gpus.numa[c], *total
		candidate.Need, candidate.Exclusive = container.Use(total.MemoryMiB), container.Exclusive(total.Cores)
		if candidate.Used = *others; !mutex {
			candidate.Used = others.Add(l.most)
		}
	}
}

func (f *fitter) chooseGPUs(i int) (ok bool) {
	container := &f.req.containers[i]
	among := len(f.candidates)
	if f.smallest {
		slices.SortStableFunc(f.candidates, func(a, b choose.Candidate) int { return cmp.Compare(a.Total.MemoryMiB, b.Total.MemoryMiB) })
		among = min(among, container.GPUs)
	}
	for ; !ok && among <= len(f.candidates); among++ {
		f.chosen, ok = choose.AppendGPUs(f.chosen[:0], f.req.gpu, f.candidates[:among], f.n.gpus.inventory.Links, container.GPUs)
	}
	if !ok {
		return false
	}
	for _, k := range f.chosen {
		f.assign(i, f.candidates[k].Position)
	}
	return true
}

func (f *fitter) assign(i, gpu int) {
	l := &f.loads[gpu]
	most, _ := f.req.simulate(l, i, &f.n.used[gpu], &f.n.gpus.total[gpu])
	at, _ := slices.BinarySearch(l.containers, i)
	l.containers, l.most = slices.Insert(l.containers, at, i), most
	f.assigned[i] = append(f.assigned[i], gpu)
}

func (f *fitter) score(o *outcome) {
	f.after, f.links = f.after[:0], f.links[:0]
	for c, used := range f.n.used {
		most := f.loads[c].most
		f.after = append(f.after, used.Add(most))
	}
	if links := f.n.gpus.inventory.Links; links != nil {
		for i, gpus := range f.assigned {
			if len(gpus) > 1 {
				f.links = choose.PairLinks(f.links, links, f.assigned[i])
			}
		}
	}
	f.charge(o)
	o.score = int32(choose.Node(f.req.node, f.req.weights, f.after, f.n.gpus.total, f.links...))
}

// charge is the same as quota.Of.
func (f *fitter) charge(o *outcome) {
	var running outcome
	for i := range f.req.containers {
		container, now := &f.req.containers[i], running
		for _, c := range f.assigned[i] {
			gpu := f.n.gpus.total[c].MemoryMiB
			mib := container.Memory(gpu)
			now.memoryMiB += mib
			now.cores += int32(container.Cores)
			now.gpuPercent += int32(quota.GPUPercent(container.Cores, mib, gpu))
		}
		o.memoryMiB, o.cores, o.gpuPercent = max(o.memoryMiB, now.memoryMiB), max(o.cores, now.cores), max(o.gpuPercent, now.gpuPercent)
		if container.kind != scheduler.Init {
			running = now
		}
	}
}

func (f *fitter) shares(r *request.Request) [][]grant.Share {
	shares := make([][]grant.Share, len(r.Containers))
	for i, position := range positions(r) {
		for _, c := range f.assigned[i] {
			gpu, container := &f.n.gpus.inventory.GPUs[c], &f.req.containers[i]
			shares[position] = append(shares[position], grant.Share{UUID: gpu.UUID, MemoryMiB: container.Memory(gpu.MemoryMiB),
				CorePercent: container.Cores})
		}
	}
	return shares
}
