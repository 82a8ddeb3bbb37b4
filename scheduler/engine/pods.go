package engine

import (
	"container/heap"
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
)

// pod is what the engine knows of a pod that holds something, or that has a problem.
type pod struct {
	uid, namespace, name string
	held                 *held // nil: nothing
	// owner is whose reservation it is, and expiry when it ends unless the pod is bound by then.
	owner  string
	expiry time.Time
	// given is what the annotations of a bound pod say; what is held may be more while it is
	// being resized.
	given scheduler.Placement
	// choice is why, where this process has chosen; nil: it has not.
	choice *choice
	// at is the pod's place in Engine.waiting, plus 1; 0: it is not in it.
	at int

	problem string
	// unserved is the node where the pod runs, asks for GPUs and was given none; empty: nowhere.
	unserved string
}

// bound says that the pod is on its node with what it holds. Else what it holds is a
// reservation, which is in Engine.waiting.
func (p *pod) bound() bool { return p.held != nil && p.at == 0 }

// entry is the pod's, made where there is none. The caller holds mu.
func (e *Engine) entry(p *scheduler.Pod) *pod {
	known := e.pods[p.UID]
	if known == nil {
		known = &pod{uid: p.UID, namespace: p.Namespace, name: p.Name}
		e.pods[p.UID] = known
	}
	return known
}

// hold books h for the pod in place of what it had, wherever that was.
func (e *Engine) hold(p *pod, h *held) {
	if p.held != nil && p.held.sameAs(h) {
		return
	}
	c := e.begin()
	if p.held != nil && p.held.placement.Node != h.placement.Node {
		c.release(p.held)
	}
	if p.held == nil {
		e.holding++
	}
	p.held = c.hold(h)
	c.commit()
}

// drop gives back what the pod holds.
func (e *Engine) drop(p *pod) {
	if p.held == nil {
		return
	}
	e.settle(p)
	c := e.begin()
	c.release(p.held)
	c.commit()
	p.held = nil
	e.holding--
}

// hold books what a pod holds, and charges it to its namespace.
func (c change) hold(h *held) *held {
	n := c.node(h.placement.Node)
	charged := *h
	charged.charge = c.e.charge(h, n)
	c.e.book.Charge(h.namespace, h.uid, charged.charge)
	c.set(n.with(&charged))
	return &charged
}

func (c change) release(h *held) {
	c.e.book.Refund(h.uid)
	c.set(c.node(h.placement.Node).without(h.uid))
}

// trouble notes what is wrong with a pod: a problem; or that it is unserved on the node.
func (e *Engine) trouble(p *pod, problem string, unserved bool, node string) {
	p.problem, p.unserved = problem, ""
	if unserved {
		p.unserved = node
	}
	if p.troubled() {
		e.troubled[p.uid] = p
	} else {
		delete(e.troubled, p.uid)
	}
}

func (p *pod) troubled() bool { return p.problem != "" || p.unserved != "" }

// forget is for a pod that may hold nothing by now: its entry goes if it says nothing more.
func (e *Engine) forget(p *pod) {
	if p.held == nil && !p.troubled() {
		delete(e.pods, p.uid)
	}
}

// queue is the pods with a reservation, as a heap: the one that ends first is the first.
type queue []*pod

func (w queue) Len() int           { return len(w) }
func (w queue) Less(i, j int) bool { return w[i].expiry.Before(w[j].expiry) }
func (w queue) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i+1, j+1
}
func (w *queue) Push(v any) {
	p := v.(*pod)
	*w = append(*w, p)
	p.at = len(*w)
}
func (w *queue) Pop() any {
	last := len(*w) - 1
	p := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	p.at = 0
	return p
}

// await gives the pod's reservation the usual time. The caller holds mu.
func (e *Engine) await(p *pod) {
	p.expiry = e.options.Clock().Add(e.options.ReservationTTL)
	if p.at == 0 {
		heap.Push(&e.waiting, p)
	} else {
		heap.Fix(&e.waiting, p.at-1)
	}
	e.wake()
}

// settle says that the pod's reservation is none any more: it is bound, or gives it back.
func (e *Engine) settle(p *pod) {
	if p.at != 0 {
		heap.Remove(&e.waiting, p.at-1)
		e.wake()
	}
	p.owner, p.expiry = "", time.Time{}
}

// wake sets when the first reservation ends.
func (e *Engine) wake() {
	soonest := int64(0)
	if len(e.waiting) > 0 {
		soonest = e.waiting[0].expiry.UnixNano()
	}
	e.soonest.Store(soonest)
}

// expire gives back what was not bound in time. The caller holds mu.
func (e *Engine) expire() {
	now := e.options.Clock()
	for len(e.waiting) > 0 && !now.Before(e.waiting[0].expiry) {
		p := e.waiting[0]
		e.stats.expired.Add(1)
		e.drop(p)
		e.forget(p)
	}
}
