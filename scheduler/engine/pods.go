package engine

import (
	"container/heap"
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
)

// pod is what the engine knows of a pod that holds something, or that has a problem.
type pod struct {
	uid, namespace, name string
	allocation           *allocation // nil: nothing
	// owner is whose reservation it is, and expiry when it ends unless the pod is bound by then.
	owner  string
	expiry time.Time
	// given is what the annotations of a bound pod say; what is held may be more while it is
	// being resized.
	granted scheduler.Placement
	// choice is why, where this process has chosen; nil: it has not.
	choice *choice
	// at is the pod's place in Engine.waiting, plus 1; 0: it is not in it.
	heapIndex int

	problem string
	// unserved is the node where the pod runs, asks for GPUs and was given none; empty: nowhere.
	unserved string
}

// bound says that the pod is on its node with what it holds. Else what it holds is a
// reservation, which is in Engine.waiting.
func (p *pod) bound() bool { return p.allocation != nil && p.heapIndex == 0 }

// entry is the pod's, made where there is none. The caller holds mu.
func (e *Engine) podEntry(p *scheduler.Pod) *pod {
	known := e.pods[p.UID]
	if known == nil {
		known = &pod{uid: p.UID, namespace: p.Namespace, name: p.Name}
		e.pods[p.UID] = known
	}
	return known
}

// hold books h for the pod in place of what it had, wherever that was.
func (e *Engine) allocate(p *pod, h *allocation) {
	if p.allocation != nil && p.allocation.sameAs(h) {
		return
	}
	c := e.begin()
	if p.allocation != nil && p.allocation.placement.Node != h.placement.Node {
		c.release(p.allocation)
	}
	if p.allocation == nil {
		e.allocated++
	}
	p.allocation = c.allocate(h)
	c.commit()
}

// drop gives back what the pod holds.
func (e *Engine) release(p *pod) {
	if p.allocation == nil {
		return
	}
	e.endReservation(p)
	c := e.begin()
	c.release(p.allocation)
	c.commit()
	p.allocation = nil
	e.allocated--
}

// hold books what a pod holds, and charges it to its namespace.
func (c change) allocate(h *allocation) *allocation {
	n := c.node(h.placement.Node)
	charged := *h
	charged.charge = c.e.charge(h, n)
	c.e.quotas.Charge(h.namespace, h.uid, charged.charge)
	c.set(n.with(&charged))
	return &charged
}

func (c change) release(h *allocation) {
	c.e.quotas.Release(h.uid)
	c.set(c.node(h.placement.Node).without(h.uid))
}

// trouble notes what is wrong with a pod: a problem; or that it is unserved on the node.
func (e *Engine) setProblem(p *pod, problem string, unserved bool, node string) {
	p.problem, p.unserved = problem, ""
	if unserved {
		p.unserved = node
	}
	if p.hasProblem() {
		e.problemPods[p.uid] = p
	} else {
		delete(e.problemPods, p.uid)
	}
}

func (p *pod) hasProblem() bool { return p.problem != "" || p.unserved != "" }

// forget is for a pod that may hold nothing by now: its entry goes if it says nothing more.
func (e *Engine) forget(p *pod) {
	if p.allocation == nil && !p.hasProblem() {
		delete(e.pods, p.uid)
	}
}

// queue is the pods with a reservation, as a heap: the one that ends first is the first.
type expiryHeap []*pod

func (w expiryHeap) Len() int           { return len(w) }
func (w expiryHeap) Less(i, j int) bool { return w[i].expiry.Before(w[j].expiry) }
func (w expiryHeap) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].heapIndex, w[j].heapIndex = i+1, j+1
}
func (w *expiryHeap) Push(v any) {
	p := v.(*pod)
	*w = append(*w, p)
	p.heapIndex = len(*w)
}
func (w *expiryHeap) Pop() any {
	last := len(*w) - 1
	p := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	p.heapIndex = 0
	return p
}

// await gives the pod's reservation the usual time. The caller holds mu.
func (e *Engine) startTimer(p *pod) {
	p.expiry = e.options.Clock().Add(e.options.ReservationTTL)
	if p.heapIndex == 0 {
		heap.Push(&e.reservations, p)
	} else {
		heap.Fix(&e.reservations, p.heapIndex-1)
	}
	e.updateSoonest()
}

// settle says that the pod's reservation is none any more: it is bound, or gives it back.
func (e *Engine) endReservation(p *pod) {
	if p.heapIndex != 0 {
		heap.Remove(&e.reservations, p.heapIndex-1)
		e.updateSoonest()
	}
	p.owner, p.expiry = "", time.Time{}
}

// wake sets when the first reservation ends.
func (e *Engine) updateSoonest() {
	soonest := int64(0)
	if len(e.reservations) > 0 {
		soonest = e.reservations[0].expiry.UnixNano()
	}
	e.soonest.Store(soonest)
}

// expire gives back what was not bound in time. The caller holds mu.
func (e *Engine) expire() {
	now := e.options.Clock()
	for len(e.reservations) > 0 && !now.Before(e.reservations[0].expiry) {
		p := e.reservations[0]
		e.stats.expired.Add(1)
		e.release(p)
		e.forget(p)
	}
}
