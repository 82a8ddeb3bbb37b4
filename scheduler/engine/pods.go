package engine

import (
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
)

type pod struct {
	uid, namespace, name string
	allocation           *allocation // nil: none
	owner                string
	expiry               time.Time // of a reservation; else zero
	// granted is from a bound pod's annotations; during a resize the allocation may be larger.
	granted scheduler.Placement
	// choice is nil if another process chose.
	choice *choice

	problem string
	// unserved is the node of a pod that runs without the GPUs it requests.
	unserved string
}

// bound: not a reservation.
func (p *pod) bound() bool { return p.allocation != nil && p.expiry.IsZero() }

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

// startTimer (re)starts the time until the reservation expires. The caller holds mu.
func (e *Engine) startTimer(p *pod, ttl time.Duration) {
	p.expiry = e.options.Clock().Add(ttl)
	e.reservations[p.uid] = p
	if at, soonest := p.expiry.UnixNano(), e.soonest.Load(); soonest == 0 || at < soonest {
		e.soonest.Store(at)
	}
}

func (e *Engine) endReservation(p *pod) {
	delete(e.reservations, p.uid)
	if len(e.reservations) == 0 {
		e.soonest.Store(0)
	}
	p.owner, p.expiry = "", time.Time{}
}

// The caller holds mu.
func (e *Engine) expire() {
	now := e.options.Clock()
	if soonest := e.soonest.Load(); soonest == 0 || now.UnixNano() < soonest {
		return
	}
	next := int64(0)
	for _, p := range e.reservations {
		if at := p.expiry.UnixNano(); now.UnixNano() < at {
			if next == 0 || at < next {
				next = at
			}
			continue
		}
		e.stats.expired.Add(1)
		e.release(p)
		e.forget(p)
	}
	e.soonest.Store(next)
}
