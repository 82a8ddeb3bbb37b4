package engine

import (
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Evaluation is a pod's verdicts for all nodes of a snapshot. It is not changed, and asking
// it takes no lock.
type Evaluation struct {
	snapshot *Snapshot
	podRequest
	outcomes *outcomeTable
	// own is the node on which the pod itself holds something: it is judged without that.
	own        string
	ownNode    *node
	ownOutcome outcome
	quotas     *quotaLimits // the namespace's quotas, or nil
	err        error
}

// Evaluate judges the pod on all nodes of a snapshot. Nodes that have not changed since a
// request of the same signature was judged are not judged again. What the pod itself holds
// already, by a reservation that it still has, counts as free for it.
func (e *Engine) Evaluate(s *Snapshot, object *scheduler.Pod, r *request.Request) *Evaluation {
	v := &Evaluation{snapshot: s, podRequest: podRequest{pod: object}}
	entry, err := e.cacheEntry(r)
	if err != nil {
		v.err = err
		return v
	}
	v.compiled, v.outcomes, v.positions = entry.compiled, entry.outcomes(s), positions(r)
	e.mu.Lock()
	at := e.allocatedNode(object.UID)
	v.quotas = e.quotaLimits(object, r)
	e.mu.Unlock()
	if at != "" {
		if n := s.node(at); n != nil && n.allocation(object.UID) != nil {
			f := v.fitter()
			defer f.release()
			v.own, v.ownNode = at, n.without(object.UID)
			v.ownOutcome = f.fit(v.ownNode)
		}
	}
	return v
}

// Holding is the node on which the pod holds GPUs; empty: none.
func (e *Engine) AllocatedNode(podUID string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.allocatedNode(podUID)
}

func (e *Engine) allocatedNode(podUID string) string {
	if p := e.pods[podUID]; p != nil && p.allocation != nil {
		return p.allocation.placement.Node
	}
	return ""
}

// Err is why no node can be judged: a policy that the pod names and that there is not.
func (v *Evaluation) Err() error { return v.err }

// Snapshot is the state that was judged.
func (v *Evaluation) Snapshot() *Snapshot { return v.snapshot }

// Verdict is the node's.
func (v *Evaluation) Verdict(node string) Verdict { return v.cached(node, v.quotas) }

func (v *Evaluation) cached(node string, l *quotaLimits) Verdict {
	slot, ok := v.snapshot.slots.get(node)
	switch {
	case v.err != nil:
		verdict := v.verdict(node, nil, &unknown, nil)
		verdict.err = v.err
		return verdict
	case !ok:
		return v.verdict(node, nil, &unknown, nil)
	case v.ownNode != nil && node == v.own:
		return v.verdict(node, v.ownNode, &v.ownOutcome, l)
	}
	return v.verdict(node, v.snapshot.table.at(slot), &v.outcomes.chunks[slot/chunkSize].outcomes[slot%chunkSize], l)
}

// unknown is the outcome for a node that the snapshot has not.
var unknown = outcome{counts: Counts{NodeUnregistered: 1}}
