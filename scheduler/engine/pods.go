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
	phase                phase
	// owner is whose reservation it is or was; expiry is when it ends unless it is bound by then.
	owner  string
	expiry time.Time
	// void is what was reserved and given back: the pod's annotations may still come with it.
	void    *scheduler.Placement
	problem string
}

// phase is how sure it is that a pod will run with what it holds.
type phase uint8

const (
	reserved phase = iota // by Reserve: its annotations have not come yet
	written               // its annotations say so, and it is not bound
	bound                 // it is on its node
)

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
	p.held = c.hold(h)
	c.commit()
}

// drop gives back what the pod holds.
func (e *Engine) drop(p *pod) {
	if p.held == nil {
		return
	}
	c := e.begin()
	c.release(p.held)
	c.commit()
	p.held, p.owner, p.expiry = nil, "", time.Time{}
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

// forget is for a pod that holds nothing: its entry goes if it says nothing more.
func (e *Engine) forget(p *pod) {
	if p.held == nil && p.void == nil && p.problem == "" {
		delete(e.pods, p.uid)
	}
}

// expiries are the reservations by their end, the first first. One that was renewed or
// confirmed is still in it, and is passed over when its time comes.
type expiries []expiry

type expiry struct {
	at  time.Time
	uid string
}

func (x expiries) Len() int           { return len(x) }
func (x expiries) Less(i, j int) bool { return x[i].at.Before(x[j].at) }
func (x expiries) Swap(i, j int)      { x[i], x[j] = x[j], x[i] }
func (x *expiries) Push(v any)        { *x = append(*x, v.(expiry)) }
func (x *expiries) Pop() any {
	last := len(*x) - 1
	v := (*x)[last]
	*x = (*x)[:last]
	return v
}

// await gives the pod's holding the usual time to be confirmed. The caller holds mu.
func (e *Engine) await(p *pod) {
	p.expiry = e.options.Clock().Add(e.options.ReservationTTL)
	heap.Push(&e.waiting, expiry{p.expiry, p.uid})
	e.soonest.Store(e.waiting[0].at.UnixNano())
}

// expire gives back what was not confirmed in time. The caller holds mu.
func (e *Engine) expire() {
	now := e.options.Clock()
	for len(e.waiting) > 0 && !now.Before(e.waiting[0].at) {
		x := heap.Pop(&e.waiting).(expiry)
		if p := e.pods[x.uid]; p != nil && p.held != nil && p.phase != bound && !now.Before(p.expiry) {
			e.stats.expired.Add(1)
			e.void(p)
		}
	}
	soonest := int64(0)
	if len(e.waiting) > 0 {
		soonest = e.waiting[0].at.UnixNano()
	}
	e.soonest.Store(soonest)
}

// void gives back what an unbound pod holds, and remembers it: annotations that come later
// and say the same hold nothing, unless the pod is bound with them.
func (e *Engine) void(p *pod) {
	if p.held != nil {
		placement := p.held.placement
		e.drop(p)
		p.void = &placement
	}
}
