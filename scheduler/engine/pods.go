package engine

import (
	"container/heap"
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
)

type pod struct {
	uid, namespace, name string
	allocation           *allocation // nil: none
	owner                string
	expiry               time.Time
	// granted is from a bound pod's annotations; during a resize the allocation may be larger.
	granted scheduler.Placement
	// choice is nil if another process chose.
	choice *choice
	// heapIndex is the index in Engine.reservations plus 1; 0: none.
	heapIndex int

	problem string
	// unserved is the node of a pod that runs without the GPUs it requests.
	unserved string
}

// bound: not a reservation.
func (p *pod) bound() bool { return p.allocation != nil && p.heapIndex == 0 }

// podEntry returns or adds the pod's entry. The caller holds mu.
func (e *Engine) podEntry(p *scheduler.Pod) *pod {
	entry := e.pods[p.UID]
	if entry == nil {
		entry = &pod{uid: p.UID, namespace: p.Namespace, name: p.Name}
		e.pods[p.UID] = entry
	}
	return entry
}

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

func (e *Engine) setProblem(p *pod, problem, unserved string) {
	p.problem, p.unserved = problem, unserved
	if p.hasProblem() {
		e.problemPods[p.uid] = p
	} else {
		delete(e.problemPods, p.uid)
	}
}

func (p *pod) hasProblem() bool { return p.problem != "" || p.unserved != "" }

func (e *Engine) forget(p *pod) {
	if p.allocation == nil && !p.hasProblem() {
		delete(e.pods, p.uid)
	}
}

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

// startTimer (re)starts the time until the reservation expires. The caller holds mu.
func (e *Engine) startTimer(p *pod, ttl time.Duration) {
	p.expiry = e.options.Clock().Add(ttl)
	if p.heapIndex == 0 {
		heap.Push(&e.reservations, p)
	} else {
		heap.Fix(&e.reservations, p.heapIndex-1)
	}
	e.updateSoonest()
}

func (e *Engine) endReservation(p *pod) {
	if p.heapIndex != 0 {
		heap.Remove(&e.reservations, p.heapIndex-1)
		e.updateSoonest()
	}
	p.owner, p.expiry = "", time.Time{}
}

func (e *Engine) updateSoonest() {
	soonest := int64(0)
	if len(e.reservations) > 0 {
		soonest = e.reservations[0].expiry.UnixNano()
	}
	e.soonest.Store(soonest)
}

// The caller holds mu.
func (e *Engine) expire() {
	now := e.options.Clock()
	for len(e.reservations) > 0 && !now.Before(e.reservations[0].expiry) {
		p := e.reservations[0]
		e.stats.expired.Add(1)
		e.release(p)
		e.forget(p)
	}
}
