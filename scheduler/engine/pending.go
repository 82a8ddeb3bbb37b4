package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Reasons of a pending pod besides the Codes.
const (
	PendingBadRequest = "BadRequest"
	// PendingReserved: being bound, or waiting for the pod group.
	PendingReserved = "Reserved"
	// PendingFits: about to be tried, or waiting for something other than GPUs.
	PendingFits = "Fits"
	// PendingNotEvaluated: too many kinds of requests for one report.
	PendingNotEvaluated = "NotEvaluated"
)

// maxEvaluated limits the work of one scrape: kinds of requests times nodes, for requests that are not in the cache.
const maxEvaluated = 500_000

// Pending is an unbound pod that requests GPUs.
type Pending struct {
	UID   string    `json:"uid"`
	Pod   string    `json:"pod"` // namespace/name
	Since time.Time `json:"since"`
	// Reason is a Pending constant, or the Code of most nodes.
	Reason string `json:"reason"`
	Text   string `json:"text"`
	// Fragmented: enough memory is free, but on several GPUs.
	Fragmented bool `json:"fragmented,omitempty"`
}

type PendingCounts struct {
	ByReason   map[string]int
	Fragmented int
}

func (e *Engine) pendingPods() []*scheduler.Pod {
	e.mu.Lock()
	e.expire()
	pods := make([]*scheduler.Pod, 0, len(e.pending))
	for _, p := range e.pending {
		pods = append(pods, p)
	}
	e.mu.Unlock()
	slices.SortFunc(pods, func(a, b *scheduler.Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// Pending evaluates up to most pods, oldest first; total is the number of all.
func (e *Engine) Pending(most int) (pods []Pending, total int) {
	pending := e.pendingPods()
	s := e.Snapshot()
	free := s.freeTotals()
	for _, object := range pending[:min(most, len(pending))] {
		p := Pending{UID: object.UID, Pod: object.Namespace + "/" + object.Name, Since: object.Created}
		r, err := e.Request(object)
		if r == nil && err == nil {
			continue // requests no GPU
		}
		state := e.pendingState(s, free, object, r, err)
		p.Reason, p.Fragmented = state.reason, state.fragmented
		switch state.reason {
		case PendingBadRequest:
			p.Text = state.err.Error()
		case PendingReserved:
			p.Text = "GPUs of node " + state.node + " are reserved for it: it is being bound, or waits for its pod group"
		case PendingFits:
			p.Text = "it fits: it is tried soon, or waits for something other than GPUs (see its events)"
		default:
			p.Text = state.evaluation.Summary()
		}
		pods = append(pods, p)
	}
	return pods, len(pending)
}

// PendingCounts evaluates each kind of request once.
func (e *Engine) PendingCounts() PendingCounts {
	counts := PendingCounts{ByReason: map[string]int{}}
	s := e.Snapshot()
	free := s.freeTotals()
	type kind struct{ namespace, signature string }
	evaluated := map[kind]pendingState{}
	left, nodes := maxEvaluated, max(len(s.Nodes()), 1)
	for _, object := range e.pendingPods() {
		r, err := e.Request(object)
		var state pendingState
		switch {
		case err != nil:
			state.reason = PendingBadRequest
		case e.AllocatedNode(object.UID) != "":
			state.reason = PendingReserved
		default:
			key := kind{object.Namespace, r.Signature}
			var ok bool
			if state, ok = evaluated[key]; ok {
				break
			}
			if e.verdicts.peek(r.Signature) == nil {
				left -= nodes
			}
			if state.reason = PendingNotEvaluated; left >= 0 {
				state = e.pendingState(s, free, object, r, nil)
			}
			evaluated[key] = state
		}
		counts.ByReason[state.reason]++
		if state.fragmented {
			counts.Fragmented++
		}
	}
	return counts
}

type pendingState struct {
	reason     string
	fragmented bool
	node       string // of its reservation
	err        error
	evaluation *Evaluation
}

func (e *Engine) pendingState(s *Snapshot, free freeTotals, object *scheduler.Pod, r *request.Request, err error) pendingState {
	if err != nil {
		return pendingState{reason: PendingBadRequest, err: err}
	}
	if node := e.AllocatedNode(object.UID); node != "" {
		return pendingState{reason: PendingReserved, node: node}
	}
	v := e.evaluateAside(s, object, r)
	if v.Err() != nil {
		return pendingState{reason: PendingBadRequest, err: v.Err()}
	}
	counts, fit := v.Reasons()
	if fit > 0 {
		return pendingState{reason: PendingFits}
	}
	code := cmp.Or(counts.Main(), NodeUnregistered) // if there are no nodes
	return pendingState{reason: code.String(), evaluation: v, fragmented: code == CardInsufficientMemory && free.enough(r)}
}

// Reasons counts the nodes that do not fit by their main reason, and the others.
func (v *Evaluation) Reasons() (counts NodeCounts, fit int) {
	for _, name := range v.Nodes() {
		if verdict := v.Verdict(name); verdict.Fits {
			fit++
		} else {
			counts[verdict.Reason()]++
		}
	}
	return counts, fit
}

type freeTotals struct{ freeMiB, largestMiB int64 }

func (s *Snapshot) freeTotals() (all freeTotals) {
	s.GPUs(func(_ string, c *scheduler.GPU, used scheduler.Use) {
		if c.Healthy && !c.Cordoned && used.Replicas < c.Replicas {
			all.freeMiB += max(0, c.MemoryMiB-used.MemoryMiB)
			all.largestMiB = max(all.largestMiB, c.MemoryMiB)
		}
	})
	return all
}

// enough reports whether the memory is free in total, and no container needs more than a whole GPU.
func (s freeTotals) enough(r *request.Request) bool {
	running, before := int64(0), int64(0) // init containers run before, one by one
	for i := range r.Containers {
		c := &r.Containers[i]
		if c.Memory(s.largestMiB) > s.largestMiB {
			return false
		}
		memory := int64(c.GPUs) * c.Memory(s.largestMiB)
		if r.Kinds[i] == scheduler.Init {
			before = max(before, memory)
		} else {
			running += memory
		}
	}
	return max(running, before) <= s.freeMiB
}
