package engine

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

var (
	// ErrNoRoom is Reserve's: the pod does not fit on the node, now. The error's text says why.
	ErrNoRoom = errors.New("no room")
	// ErrBound is Reserve's: the pod is on another node already.
	ErrBound = errors.New("the pod is bound already")
)

// NoRoomError is an ErrNoRoom with its verdict.
type NoRoomError struct{ Verdict Verdict }

func (e *NoRoomError) Error() string { return e.Verdict.Text() }

// Is says that it is ErrNoRoom.
func (e *NoRoomError) Is(target error) bool { return target == ErrNoRoom }

// counters are Stats', kept as they happen.
type counters struct {
	reserved, again, refused, expired, resized atomic.Uint64
}

// Reserve books the pod's GPUs on the node, if they are free on the newest state: of
// callers that want the same room one gets it, and the others an ErrNoRoom. It is the same
// placement again for a pod that has one on the node already. A pod that has a reservation
// elsewhere loses it; one that is bound elsewhere is refused with ErrBound.
//
// The owner names the caller, for Unreserve. The reservation ends after the engine's
// ReservationTTL, unless the pod is bound by then (SetPod).
func (e *Engine) Reserve(object *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
	sheet, err := e.sheet(r)
	if err != nil {
		return scheduler.Placement{}, fmt.Errorf("reserve GPUs of node %s for pod %s/%s: %w", node, object.Namespace, object.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	p := e.pods[object.UID]
	if p != nil && p.held != nil {
		switch same := p.held.placement.Node == node; {
		case p.bound() && !same:
			return scheduler.Placement{}, fmt.Errorf("reserve GPUs of node %s for pod %s/%s: %w, on node %s", node, object.Namespace, object.Name, ErrBound, p.held.placement.Node)
		case p.bound():
			return p.held.placement, nil
		case same && e.stands(p.held):
			e.stats.again.Add(1)
			p.owner = owner
			e.await(p)
			return p.held.placement, nil
		}
	}
	state := e.newest.Load()
	n := state.node(node)
	if n != nil {
		n = n.without(object.UID)
	}
	f := sheet.ask.fitter()
	defer f.release()
	out := f.fit(n)
	of := &subject{object, sheet.ask, positions(r)}
	v := of.verdict(node, n, &out, e.limits(object, r))
	if !v.Fits {
		e.stats.refused.Add(1)
		return scheduler.Placement{}, &NoRoomError{v}
	}
	if v.frugal {
		f.frugally(n)
	}
	placement := scheduler.Placement{Node: node, Containers: f.shares(r)}
	p = e.entry(object)
	e.hold(p, newHeld(object, placement))
	p.owner, p.choice = owner, e.chose(r, n)
	e.await(p)
	e.stats.reserved.Add(1)
	return placement, nil
}

// stands says whether what is held can still be used: its GPUs are there, and sound.
func (e *Engine) stands(h *held) bool {
	n := e.newest.Load().node(h.placement.Node)
	if n == nil {
		return false
	}
	now := n.holding(h.uid)
	if now == nil || len(now.takes) < len(now.uses) {
		return false
	}
	for _, t := range now.takes {
		if c := &n.gpus.inventory.GPUs[t.gpu]; !c.Healthy || c.Cordoned {
			return false
		}
	}
	return true
}

// Unreserve gives back what the owner has reserved for the pod: all is then as if it had
// never been reserved. It does nothing for a pod that is bound, or that another owner has
// reserved since.
func (e *Engine) Unreserve(podUID, owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pods[podUID]; p != nil && p.held != nil && !p.bound() && p.owner == owner {
		e.drop(p)
		e.forget(p)
	}
}
