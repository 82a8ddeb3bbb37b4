package engine

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Overlay is a snapshot with pods added or removed, for preemption. Immutable; a change copies one node.
type Overlay struct {
	base, state *Snapshot
	changes     []quotaChange
}

func (s *Snapshot) Overlay() *Overlay { return &Overlay{base: s, state: s} }

func (o *Overlay) Without(node, podUID string) *Overlay {
	n := o.state.node(node)
	h := n.allocation(podUID)
	if h == nil {
		return o
	}
	return o.set(n.without(podUID), quotaChange{h.uid, h.namespace, h.charge, false})
}

func (o *Overlay) set(n *node, m quotaChange) *Overlay {
	row, ok := o.state.rows.get(n.name)
	if !ok {
		return o
	}
	next := *o.state
	next.table = o.state.table.with(row, n, 0)
	return &Overlay{o.base, &next, append(slices.Clip(o.changes), m)}
}

// Has reports whether the pod has GPUs of the node.
func (o *Overlay) Has(node, podUID string) bool { return o.state.node(node).allocation(podUID) != nil }

// With adds the pod to the node: with its allocation in the snapshot, or else (a nominated pod: its victims
// can still run) with its request. r is nil without GPUs.
func (e *Engine) With(o *Overlay, node string, object *scheduler.Pod, r *request.Request) *Overlay {
	n := o.state.node(node)
	if n == nil || n.allocation(object.UID) != nil {
		return o
	}
	if was := o.base.node(node).allocation(object.UID); was != nil {
		return o.set(n.with(was), quotaChange{was.uid, was.namespace, was.charge, true})
	}
	if r == nil {
		return o
	}
	entry, err := e.cacheEntry(r)
	if err != nil {
		return o // it can't be placed anywhere
	}
	f := entry.compiled.fitter()
	defer f.release()
	if out := f.fit(n); !out.fits {
		f.assignRegardless(n)
	}
	h := newAllocation(object, scheduler.Placement{Node: node, Containers: f.shares(r)})
	h.charge = quotaCharge(h, n)
	return o.set(n.with(h), quotaChange{h.uid, h.namespace, h.charge, true})
}

// assignRegardless overcommits the GPUs with the most free memory if needed.
func (f *fitter) assignRegardless(n *node) {
	f.reset(n)
	for _, i := range f.req.order {
		var ignored outcome
		if f.assignContainer(i, &ignored) {
			continue
		}
		var any []int
		for c, reason := range f.usable {
			if reason == OK {
				any = append(any, c)
			}
		}
		slices.SortStableFunc(any, func(a, b int) int { return cmp.Compare(f.free(b), f.free(a)) })
		for _, c := range any[:min(len(any), f.req.containers[i].GPUs)] {
			f.assign(i, c)
		}
	}
}

func (f *fitter) free(gpu int) int64 {
	return f.n.gpus.total[gpu].MemoryMiB - f.n.used[gpu].MemoryMiB - f.loads[gpu].most.MemoryMiB
}

// On is the verdict on an overlay of the evaluated snapshot.
func (v *Evaluation) On(o *Overlay, node string) Verdict {
	n := o.state.node(node)
	l := v.quotas.with(v.pod.UID, o.changes)
	switch {
	case v.err != nil:
		return v.Verdict(node)
	case n == o.base.node(node) && o.base.version == v.snapshot.version:
		return v.cached(node, l)
	}
	if n != nil {
		n = n.without(v.pod.UID)
	}
	f := v.fitter()
	defer f.release()
	out := f.evaluate(n)
	return v.verdict(node, n, &out, l)
}

// Victims returns a minimal set of candidates to evict so that the pod fits. Candidates are spared in
// their order: most important first. ok is false if none suffices.
func (v *Evaluation) Victims(o *Overlay, node string, candidates []string) (victims []string, ok bool) {
	full := o
	for _, uid := range candidates {
		o = o.Without(node, uid)
	}
	if verdict := v.On(o, node); !verdict.Fits {
		return nil, false
	}
	for _, uid := range candidates {
		was := full.state.node(node).allocation(uid)
		if was == nil {
			continue
		}
		spared := o.set(o.state.node(node).with(was), quotaChange{was.uid, was.namespace, was.charge, true})
		if verdict := v.On(spared, node); verdict.Fits {
			o = spared
		} else {
			victims = append(victims, uid)
		}
	}
	return victims, true
}
