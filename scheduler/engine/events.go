package engine

import (
	"cmp"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// SetNode handles an added or changed node. With unreadable GPUs it gets no pods and keeps its allocations.
func (e *Engine) SetNode(object *scheduler.Node) {
	inventory, warning, err := wire.DecodeNode(object)
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
