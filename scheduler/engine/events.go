package engine

import (
	"cmp"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// SetNode is the event that a node has come or has changed. A node whose GPUs
// can't be read gets no pods; what pods have of it is kept, and counted again when its
// GPUs are back.
func (e *Engine) SetNode(object *scheduler.Node) {
	inventory, passed, err := wire.ReadNode(object)
	problem := ""
	if err = cmp.Or(err, passed); err != nil { // what is passed over leaves the node in use
		problem = err.Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.begin()
	old := c.node(object.Name)
	if n := old.asRegistered(object, inventory, problem); n != old {
		c.set(c.recharged(n))
		c.commit()
	}
}

// DeleteNode is the event that a node is gone. What pods hold of it is kept until they are
// gone too: the node may come back with them.
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
	c.set(c.recharged(&next))
	c.commit()
}

// SetPod is the event that a pod has come or has changed. What it holds is what its
// annotations say once it is bound, for as long as it runs: they are written in the
// transaction that binds it. What a pod that waits has of them is from somebody else, and
// holds nothing; a reservation (Reserve) it keeps, whatever changes of it.
//
//   - What a bound pod holds it keeps until it ends, whatever becomes of its annotations:
//     its containers run. Only a resize changes it: other amounts of the same GPUs, of a
//     later generation than before, signed where there are keys.
//   - It is counted whether or not its grant is signed: keys may come late or change, and
//     the GPUs are taken nonetheless.
//   - Annotations that can't be read, that are not signed as they must be, that are for
//     another node or that were changed are a problem (Problems); so is a bound pod that
//     asks for GPUs and was given none.
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
	unserved := placement == nil && problem == "" && e.requestsGPUs(object)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, object.UID)
	if placement == nil && problem == "" && !unserved && e.pods[object.UID] == nil {
		return
	}
	p := e.podEntry(object)
	switch {
	case p.bound() && problem == "" && p.resized(placement):
		e.reallocate(p, newAllocation(object, *placement))
		p.granted = *placement
		unserved = false
	case p.bound():
		if changed := p.changed(placement); changed != "" && problem == "" {
			problem = changed
		}
		unserved = false
	case placement != nil:
		e.allocate(p, newAllocation(object, *placement))
		e.endReservation(p)
		p.granted = *placement
	case p.allocation != nil && object.Node != p.allocation.placement.Node:
		e.release(p) // of the reservation nothing will come
	}
	e.setProblem(p, problem, unserved, object.Node)
	e.forget(p)
}

// setWaiting is for a pod that is on no node.
func (e *Engine) setPending(object *scheduler.Pod) {
	asks := e.requestsGPUs(object)
	e.mu.Lock()
	defer e.mu.Unlock()
	if asks {
		e.pending[object.UID] = object
	}
	if p := e.pods[object.UID]; p != nil {
		problem := ""
		if p.bound() {
			problem = "it was bound and is no more"
		}
		e.setProblem(p, problem, false, "")
		e.forget(p)
	}
}

// asks says whether the pod asks for GPUs, or means to.
func (e *Engine) requestsGPUs(object *scheduler.Pod) bool {
	r, err := e.Request(object)
	return r != nil || err != nil
}

// changed is what has become of the annotations of a bound pod that holds GPUs.
func (p *pod) changed(placement *scheduler.Placement) string {
	switch {
	case placement == nil:
		return "its annotations are gone; it keeps what it has until it ends"
	case !samePlacement(p.granted, *placement):
		return "its annotations were changed after it was bound; what it was given first is counted until it ends: see who may write them, and delete it, so that it is scheduled again"
	}
	return ""
}

// decode is what the annotations of a bound pod give it, and what is wrong with them.
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

// DeletePod is the event that a pod is gone.
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
