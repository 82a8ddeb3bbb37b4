package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
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
	charged.charge = quotaCharge(h, n)
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

var (
	ErrNoFit = errors.New("the pod does not fit")
	ErrBound = errors.New("the pod is already bound")
)

type NoFitError struct{ Verdict Verdict }

func (e *NoFitError) Error() string { return e.Verdict.Text() }

func (e *NoFitError) Is(target error) bool { return target == ErrNoFit }

type counters struct {
	reserved, repeated, refused, expired, resized atomic.Uint64
}

// Reserve reserves GPUs on the newest state. A pod with an allocation on the node gets the same one again; a
// reservation on another node is released. Errors are ErrNoFit and ErrBound. owner is the caller's name for
// Unreserve. The reservation expires after ReservationTTL unless SetPod confirms it.
func (e *Engine) Reserve(object *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
	return e.ReserveFor(e.options.ReservationTTL, object, r, node, owner)
}

// ReserveFor is Reserve with another time until expiry.
func (e *Engine) ReserveFor(ttl time.Duration, object *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
	entry, err := e.cacheEntry(r)
	if err != nil {
		return scheduler.Placement{}, fmt.Errorf("reserve GPUs of node %s for pod %s/%s: %w", node, object.Namespace, object.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	p := e.pods[object.UID]
	if p != nil && p.allocation != nil {
		switch same := p.allocation.placement.Node == node; {
		case p.bound() && !same:
			return scheduler.Placement{}, fmt.Errorf("reserve GPUs of node %s for pod %s/%s: %w to node %s", node,
				object.Namespace, object.Name, ErrBound, p.allocation.placement.Node)
		case p.bound():
			return p.allocation.placement, nil
		case same && e.stillUsable(object.UID):
			e.stats.repeated.Add(1)
			p.owner = owner
			e.startTimer(p, ttl)
			return p.allocation.placement, nil
		}
	}
	n := e.newest.Load().node(node)
	if n != nil {
		n = n.without(object.UID)
	}
	f := entry.compiled.fitter()
	defer f.release()
	out := f.fit(n)
	request := &podRequest{object, entry.compiled, positions(r)}
	v := request.verdict(node, n, &out, e.quotaLimits(object, r))
	if !v.Fits {
		e.stats.refused.Add(1)
		return scheduler.Placement{}, &NoFitError{v}
	}
	if v.smallest {
		f.fitSmallest(n)
	}
	placement := scheduler.Placement{Node: node, Containers: f.shares(r), HAMi: n.gpus.inventory.HAMi}
	p = e.podEntry(object)
	e.allocate(p, newAllocation(object, placement))
	p.owner, p.choice = owner, e.newChoice(r, n)
	e.startTimer(p, ttl)
	e.stats.reserved.Add(1)
	return placement, nil
}

// stillUsable reports whether the GPUs of the pod's allocation are registered and healthy.
func (e *Engine) stillUsable(podUID string) bool {
	n, h := e.current(podUID)
	return h != nil && len(h.byPosition) == len(h.byUUID) && !slices.ContainsFunc(h.byPosition, func(u positionUse) bool {
		gpu := &n.gpus.inventory.GPUs[u.gpu]
		return !gpu.Healthy || gpu.Cordoned
	})
}

// Unreserve releases the owner's reservation, unless the pod is bound.
func (e *Engine) Unreserve(podUID, owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pods[podUID]; p != nil && p.allocation != nil && !p.bound() && p.owner == owner {
		e.release(p)
		e.forget(p)
	}
}

// Forget releases all reservations.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.reservations {
		e.release(p)
		e.forget(p)
	}
}

// SetNode handles an added or changed node. With unreadable GPUs it gets no pods and keeps its allocations.
func (e *Engine) SetNode(object *scheduler.Node) {
	var inventory scheduler.Inventory
	var warning, err error
	if e.selects(object) {
		inventory, warning, err = wire.DecodeNode(object)
	}
	problem := ""
	if err = cmp.Or(err, warning); err != nil { // a warning leaves the node in use
		problem = err.Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.begin()
	old := c.node(object.Name)
	if n := old.asRegistered(object, inventory, problem); n != old {
		c.recharge(n)
		c.set(n)
		c.commit()
	}
}

func (e *Engine) selects(object *scheduler.Node) bool {
	for key, value := range e.options.NodeSelector {
		if got, ok := object.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// DeleteNode keeps the allocations: the node may come back.
func (e *Engine) DeleteNode(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.begin()
	old := c.node(name)
	if !old.registered {
		return
	}
	next := *old.withGPUs(noGPUs)
	next.registered, next.problem, next.labels = false, "", nil
	c.recharge(&next)
	c.set(&next)
	c.commit()
}

// SetPod handles an added or changed pod. Annotations count once it is bound. A bound pod keeps its allocation
// until it ends, because its containers run; only a resize changes it, with a later generation, signed if keys
// are set. Unsigned grants count too, because keys may be added later. Problems reports what is invalid.
func (e *Engine) SetPod(object *scheduler.Pod) {
	if object.Ended {
		e.DeletePod(object.UID)
		return
	}
	if object.Node == "" {
		e.setPending(object)
		return
	}
	placement, problem := e.decode(object)
	unserved := ""
	if placement == nil && problem == "" && e.requestsGPUs(object) {
		unserved = object.Node
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, object.UID)
	if placement == nil && problem == "" && unserved == "" && e.pods[object.UID] == nil {
		return
	}
	p := e.podEntry(object)
	switch {
	case p.bound() && problem == "" && p.resized(placement):
		e.reallocate(p, newAllocation(object, *placement))
		p.granted = *placement
		unserved = ""
	case p.bound():
		if changed := p.changed(placement); changed != "" && problem == "" {
			problem = changed
		}
		unserved = ""
	case placement != nil:
		e.allocate(p, newAllocation(object, *placement))
		e.endReservation(p)
		p.granted = *placement
	case p.allocation != nil && object.Node != p.allocation.placement.Node:
		e.release(p) // it was bound elsewhere
	}
	e.setProblem(p, problem, unserved)
	e.forget(p)
}

func (e *Engine) setPending(object *scheduler.Pod) {
	requestsGPUs := e.requestsGPUs(object)
	e.mu.Lock()
	defer e.mu.Unlock()
	if requestsGPUs {
		e.pending[object.UID] = object
	}
	if p := e.pods[object.UID]; p != nil {
		problem := ""
		if p.bound() {
			problem = "it was bound and is no longer"
		}
		e.setProblem(p, problem, "")
		e.forget(p)
	}
}

// requestsGPUs is also true if the request is invalid.
func (e *Engine) requestsGPUs(object *scheduler.Pod) bool {
	r, err := e.Request(object)
	return r != nil || err != nil
}

// changed describes how a bound pod's annotations differ from the granted ones.
func (p *pod) changed(placement *scheduler.Placement) string {
	switch {
	case placement == nil:
		return "its annotations were removed; it keeps its GPUs until it ends"
	case !samePlacement(p.granted, *placement):
		return "its annotations were changed after it was bound; the original grant counts until it ends: check which " +
			"users may write them, and delete the pod so that it is scheduled again"
	}
	return ""
}

func (e *Engine) decode(object *scheduler.Pod) (placement *scheduler.Placement, problem string) {
	placement, err := wire.DecodePod(object, nil)
	if err == nil && placement != nil && e.options.Keys != nil {
		_, err = wire.DecodePod(object, e.options.Keys)
	}
	if err != nil {
		problem = err.Error()
	}
	return placement, problem
}

func (e *Engine) DeletePod(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, uid)
	if p := e.pods[uid]; p != nil {
		e.release(p)
		delete(e.pods, uid)
		delete(e.problemPods, uid)
	}
}
