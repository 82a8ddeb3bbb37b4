package engine

import (
	"fmt"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// SetNode is the event that a node has come or has changed. A node whose cards
// can't be read gets no pods; what pods have of it is kept, and counted again when its
// cards are back.
func (e *Engine) SetNode(object *scheduler.Node) {
	inventory, err := wire.DecodeNode(object)
	if err == nil {
		err = wire.PassedOver(object) // the node is used all the same
	}
	problem := ""
	if err != nil {
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
	next := *old.withCards(noCards)
	next.registered, next.problem, next.labels = false, "", nil
	c.set(c.recharged(&next))
	c.commit()
}

// SetPod is the event that a pod has come or has changed. Its annotations say what it holds:
//
//   - of a pod that is bound, for as long as it runs;
//   - of a pod that waits, for a reservation's time: somebody may be binding it;
//   - a reservation of this engine is confirmed by them, and is not counted twice;
//   - annotations that can't be read, are not signed as they must be, or are for another node
//     hold nothing and are a problem (Problems). One that spoils what a bound pod holds
//     already changes nothing: its containers run.
func (e *Engine) SetPod(object *scheduler.Pod) {
	placement, problem := e.decode(object)
	e.mu.Lock()
	defer e.mu.Unlock()
	if object.Ended {
		e.remove(object.UID)
		return
	}
	if placement == nil && problem == "" && e.pods[object.UID] == nil {
		return
	}
	p := e.entry(object)
	p.problem = problem
	switch {
	case placement == nil:
		e.setUnplaced(p, object)
	case object.Node != "":
		e.hold(p, newHeld(object, *placement))
		p.phase, p.void = bound, nil
	case p.phase == bound && p.held != nil:
		p.problem = "it was bound and is no more"
	case p.void != nil && samePlacement(*p.void, *placement):
	default:
		e.setWritten(p, newHeld(object, *placement))
	}
	e.forget(p)
}

// decode is what the pod's annotations give it on its node, or what is wrong with them.
func (e *Engine) decode(object *scheduler.Pod) (placement *scheduler.Placement, problem string) {
	if object.Ended {
		return nil, ""
	}
	placement, err := wire.DecodePod(object, e.options.Keys)
	switch {
	case err != nil:
		return nil, err.Error()
	case placement == nil:
		return nil, ""
	case placement.Node == "" && object.Node == "":
		return nil, "its annotations give it cards and name no node"
	case placement.Node == "":
		placement.Node = object.Node
	case object.Node != "" && placement.Node != object.Node:
		return nil, fmt.Sprintf("it is on node %s, and its annotations give it cards of node %s: delete it, so that it is scheduled again", object.Node, placement.Node)
	}
	return placement, ""
}

// setUnplaced is for a pod whose annotations give it nothing.
func (e *Engine) setUnplaced(p *pod, object *scheduler.Pod) {
	switch {
	case p.held == nil:
	case p.phase == bound:
		if p.problem == "" {
			p.problem = "its annotations are gone; it keeps what it has until it ends"
		}
	case p.phase == written || object.Node != "" && object.Node != p.held.placement.Node:
		e.drop(p) // of the reservation nothing will come
	}
}

// setWritten is for a pod that waits and whose annotations give it cards.
func (e *Engine) setWritten(p *pod, h *held) {
	confirms := p.held != nil && p.held.sameAs(h)
	if !confirms {
		e.hold(p, h)
	}
	if !confirms || p.phase == reserved && p.owner == "" {
		e.await(p)
	}
	p.phase, p.void = written, nil
}

// DeletePod is the event that a pod is gone.
func (e *Engine) DeletePod(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(uid)
}

func (e *Engine) remove(uid string) {
	if p := e.pods[uid]; p != nil {
		e.drop(p)
		delete(e.pods, uid)
	}
}
