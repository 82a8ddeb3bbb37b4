package engine

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Victim is a bound pod to evict.
type Victim struct{ UID, Namespace, Name, Node string }

// Reclaim finds pods to evict so that the quotas allow the pod, and the node on which it fits then: pods of lower
// priority of its namespace on any node, and, if its namespace stays within its own quotas, pods of namespaces that
// borrow from its pools, until these borrow no more. It keeps the most important pods. evictable excludes pods.
func (e *Engine) Reclaim(s *Snapshot, object *scheduler.Pod, r *request.Request, evictable func(Victim) bool) (node string, victims []Victim) {
	v := e.Evaluate(s, object, r)
	if v.err != nil || v.quotas == nil {
		return "", nil
	}
	candidates := v.reclaimable(e.boundPods(s), evictable)
	without := s.Overlay()
	for _, h := range candidates {
		without = without.Without(h.placement.Node, h.uid)
	}
	var fewest []*allocation
	for _, name := range v.Nodes() {
		if verdict := v.On(without, name); !verdict.Fits {
			continue
		}
		if needed := v.spare(without, name, candidates); node == "" || less(needed, fewest) {
			node, fewest = name, needed
		}
	}
	for _, h := range fewest {
		victims = append(victims, h.victim())
	}
	return node, victims
}

func (h *allocation) victim() Victim { return Victim{h.uid, h.namespace, h.name, h.placement.Node} }

// less prefers a lower highest priority, then fewer pods.
func less(a, b []*allocation) bool {
	highest := func(all []*allocation) (p int32) {
		p = -1 << 31
		for _, h := range all {
			p = max(p, h.priority)
		}
		return p
	}
	return cmp.Or(cmp.Compare(highest(a), highest(b)), cmp.Compare(len(a), len(b))) < 0
}

// boundPods are sorted: the most important first.
func (e *Engine) boundPods(s *Snapshot) (bound []*allocation) {
	var all []*allocation
	s.each(func(n *node) { all = append(all, n.pods...) })
	e.mu.Lock()
	for _, h := range all {
		if p := e.pods[h.uid]; p != nil && p.bound() {
			bound = append(bound, h)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(bound, func(a, b *allocation) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	return bound
}

func (v *Evaluation) reclaimable(bound []*allocation, evictable func(Victim) bool) (candidates []*allocation) {
	account := v.quotas.account
	lends := account.Lends(v.quotas.least)
	for _, h := range slices.Backward(bound) { // the least important ones of a namespace give back first
		switch {
		case !evictable(h.victim()):
		case h.namespace == v.pod.Namespace && h.priority < v.pod.Priority,
			h.namespace != v.pod.Namespace && lends && account.Borrows(h.namespace, h.charge):
			candidates = append(candidates, h)
			account = account.With(h.namespace, h.charge, -1)
		}
	}
	slices.Reverse(candidates)
	return candidates
}

// spare puts back the candidates, in their order, that can stay.
func (v *Evaluation) spare(o *Overlay, node string, candidates []*allocation) (victims []*allocation) {
	for _, h := range candidates {
		spared := o.set(o.state.node(h.placement.Node).with(h), quotaChange{h.uid, h.namespace, h.charge, true})
		if verdict := v.On(spared, node); verdict.Fits {
			o = spared
		} else {
			victims = append(victims, h)
		}
	}
	return victims
}
