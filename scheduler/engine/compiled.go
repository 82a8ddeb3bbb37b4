package engine

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

type policies struct {
	node    choose.NodePolicy
	gpu     choose.GPUPolicy
	weights choose.Weights
}

func parsePolicies(node, gpu, weights string) (p policies, err error) {
	if p.node, err = choose.ParseNodePolicy(node); err != nil {
		return p, err
	}
	if p.gpu, err = choose.ParseGPUPolicy(gpu); err != nil {
		return p, err
	}
	if p.weights, err = choose.ParseWeights(weights); err != nil {
		return p, err
	}
	p.gpu.Weights = p.weights
	return p, nil
}

// compiled is a request prepared for fitting, shared by all requests with the same signature. It has the
// containers with GPUs in the order in which they start.
type compiled struct {
	policies
	rules      request.Rules
	ruled      bool // the rules select GPUs
	namesGPUs  bool // by UUID
	containers []container
	// uniform: one container, and the node score does not depend on which GPUs it gets.
	uniform bool
	// relative: some memory is in percent, so smaller GPUs use less quota.
	relative bool
	// order is the first try: init containers last, to reuse the pod's GPUs.
	order []int
	// bySize is the second try: largest first, and init containers last too: they need what the others leave, and
	// take nothing from them.
	bySize []int
}

type container struct {
	request.Container
	kind scheduler.Kind
}

// positions are those of compiled.containers in the pod.
func positions(r *request.Request) []int {
	var early, late []int
	for i := range r.Containers {
		switch {
		case r.Containers[i].GPUs == 0:
		case r.Kinds[i] == scheduler.App:
			late = append(late, i)
		default:
			early = append(early, i)
		}
	}
	return append(early, late...)
}

// cacheEntry fails if the pod's policies are invalid.
func (e *Engine) cacheEntry(r *request.Request) (*cacheEntry, error) {
	return e.verdicts.get(r.Signature, func() (*compiled, error) { return e.compile(r) })
}

func (e *Engine) compile(r *request.Request) (*compiled, error) {
	o := &e.options
	p, err := parsePolicies(cmp.Or(r.Rules.NodePolicy, o.NodePolicy), cmp.Or(r.Rules.GPUPolicy, o.GPUPolicy),
		cmp.Or(r.Rules.Weights, o.Weights))
	if err != nil {
		return nil, err
	}
	p.gpu.NUMABind = r.Rules.NUMABind
	a := &compiled{policies: p, rules: r.Rules}
	a.namesGPUs = len(r.Rules.UseUUIDs)+len(r.Rules.AvoidUUIDs) > 0
	a.ruled = a.namesGPUs || len(r.Rules.Modes)+len(r.Rules.UseTypes)+len(r.Rules.AvoidTypes) > 0 || r.Rules.Isolation > grant.IsolationAny
	for _, i := range positions(r) {
		a.containers = append(a.containers, container{r.Containers[i], r.Kinds[i]})
		a.relative = a.relative || r.Containers[i].MemoryMiB == 0 && r.Containers[i].MemoryPercent > 0
	}
	a.uniform = len(a.containers) == 1 && p.node.Sums() && !r.Rules.NUMABind
	for _, init := range []bool{false, true} {
		for i := range a.containers {
			if (a.containers[i].kind == scheduler.Init) == init {
				a.order = append(a.order, i)
			}
		}
	}
	a.bySize = slices.Clone(a.order)
	late := slices.IndexFunc(a.bySize, func(i int) bool { return a.containers[i].kind == scheduler.Init })
	for _, part := range [][]int{a.bySize[:max(late, 0)], a.bySize[max(late, 0):]} {
		slices.SortStableFunc(part, func(i, j int) int { return a.containers[i].compareSize(&a.containers[j]) })
	}
	return a, nil
}

func (n *container) compareSize(m *container) int {
	return cmp.Or(
		cmp.Compare(m.Cores/grant.MaxCorePercent, n.Cores/grant.MaxCorePercent),
		cmp.Compare(m.MemoryMiB, n.MemoryMiB),
		cmp.Compare(m.MemoryPercent, n.MemoryPercent),
		cmp.Compare(m.Cores, n.Cores),
		cmp.Compare(m.GPUs, n.GPUs),
	)
}

// evaluate is fit without choosing GPUs, where possible.
func (f *fitter) evaluate(n *node) outcome {
	if f.req.uniform && n != nil {
		if o, ok := f.fastFit(n); ok {
			return o
		}
	}
	return f.fit(n)
}

// fastFit handles one container if it does not matter which GPUs it gets. ok is false if it can't decide.
func (f *fitter) fastFit(n *node) (o outcome, ok bool) {
	container, gpus := &f.req.containers[0], n.gpus
	if len(gpus.total) < container.GPUs {
		return o, false
	}
	f.n, f.after = n, append(f.after[:0], n.used...)
	f.setUsable(n)
	var none gpuLoad
	first := int64(-1) // of the first fitting GPU
	given := 0
	for c, reason := range f.usable {
		if reason != OK {
			continue
		}
		total := &gpus.total[c]
		use, reason := f.req.check(&none, 0, &n.used[c], total)
		if reason != OK {
			continue
		}
		if first < 0 {
			first = total.MemoryMiB
		}
		if total.MemoryMiB != first && (container.MemoryMiB == 0 || container.Cores == 0) { // use or gpuPercent depends on the GPU
			return o, false
		}
		if given < container.GPUs {
			f.after[c] = f.after[c].Add(use)
			given++
			o.memoryMiB += use.MemoryMiB
			o.cores += int32(use.Cores)
			o.gpuPercent += int32(quota.GPUPercent(use.Cores, use.MemoryMiB, total.MemoryMiB))
		}
	}
	if given < container.GPUs {
		return o, false // the reasons are needed
	}
	o.fits = true
	o.score = int32(choose.Node(f.req.node, f.req.weights, f.after, gpus.total))
	return o, true
}
