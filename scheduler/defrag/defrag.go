// Package defrag plans which pods to resize or to move so that a pending pod fits. It changes nothing: the scheduler
// serves plans, and the CLI carries them out.
package defrag

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Input is the cluster, and what the engine does not know about it.
type Input struct {
	Engine  *engine.Engine
	Pending *scheduler.Pod
	// Running are bound pods; those without GPUs are ignored.
	Running []*scheduler.Pod
	// Fixed returns why a pod can't be evicted; "" if it can.
	Fixed func(uid string) string
	// Allowed reports whether a pod's other constraints allow the node.
	Allowed func(uid, node string) bool
}

// Plan makes the pending pod fit on Node. It has resizes or moves, not both, and neither if the pod fits already.
type Plan struct {
	Pod     string   `json:"pod"` // namespace/name
	Node    string   `json:"node"`
	Resizes []Resize `json:"resizes,omitempty"`
	Moves   []Move   `json:"moves,omitempty"`
	// GPUs are the pod's on Node. They have to be cordoned until the moved pods are gone: the pods that replace these are
	// placed before.
	GPUs []string `json:"gpus,omitempty"`
}

// Resize lowers the memory of a running pod's containers.
type Resize struct {
	Pod string `json:"pod"` // namespace/name
	UID string `json:"uid"`
	// MemoryMiB is of each GPU, by container.
	MemoryMiB map[string]int64 `json:"memoryMiB"`
}

// Move evicts a pod from From. It fits on To then, beside the pending pod and the other moved pods.
type Move struct {
	Pod  string `json:"pod"` // namespace/name
	UID  string `json:"uid"`
	From string `json:"from"`
	To   string `json:"to"`
}

// ErrNone: no plan was found.
var ErrNone = errors.New("no resizes or moves make room for the pod")

// planner has the evaluations of one snapshot.
type planner struct {
	Input
	snapshot *engine.Snapshot
	pending  candidate
	nodes    []string
	byNode   map[string][]candidate // that can be moved or resized, the largest first
}

type candidate struct {
	pod        *scheduler.Pod
	request    *request.Request
	evaluation *engine.Evaluation
	minMiB     int64 // 0: it can't be resized
	fixed      string
}

// Make plans for the nodes that the pending pod allows, and returns the plan that disturbs least: resizes before moves,
// and few before many.
func Make(in Input) (Plan, error) {
	p := planner{Input: in, snapshot: in.Engine.Snapshot(), byNode: map[string][]candidate{}}
	plan := Plan{Pod: name(in.Pending)}
	var err error
	if p.pending, err = p.candidate(in.Pending); err != nil {
		return plan, err
	}
	for _, node := range p.pending.evaluation.Nodes() {
		if in.Allowed(in.Pending.UID, node) {
			p.nodes = append(p.nodes, node)
		}
	}
	slices.Sort(p.nodes)
	if plan.Node = p.pending.evaluation.BestOn(p.snapshot.Overlay(), p.nodes); plan.Node != "" {
		return plan, nil
	}
	for _, pod := range in.Running {
		if c, err := p.candidate(pod); err == nil && pod.Node != "" {
			p.byNode[pod.Node] = append(p.byNode[pod.Node], c)
		}
	}
	for _, all := range p.byNode {
		slices.SortFunc(all, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.pod.Priority, a.pod.Priority), cmp.Compare(b.request.GPUMemory(), a.request.GPUMemory()),
				cmp.Compare(a.pod.UID, b.pod.UID))
		})
	}
	found := false
	for _, node := range p.nodes {
		for _, try := range []func(string) (Plan, bool){p.resize, p.moveSmall, p.moveLarge} {
			if one, ok := try(node); ok && (!found || one.cost() < plan.cost()) {
				found, plan = true, one
			}
		}
	}
	if !found {
		return plan, fmt.Errorf("%w: %s", ErrNone, p.pending.evaluation.Summary())
	}
	return plan, nil
}

// cost counts an eviction as more than any number of resizes.
func (p *Plan) cost() int { return len(p.Moves)*1_000_000 + len(p.Resizes) }

func (p *planner) candidate(pod *scheduler.Pod) (candidate, error) {
	r, err := p.Engine.Request(pod)
	if err != nil {
		return candidate{}, err
	}
	if r == nil {
		return candidate{}, fmt.Errorf("pod %s requests no GPU", name(pod))
	}
	c := candidate{pod: pod, request: r, evaluation: p.Engine.Evaluate(p.snapshot, pod, r)}
	mib, err := strconv.ParseInt(pod.Annotations[api.AnnotationMinMemory], 10, 64)
	if err == nil && mib > 0 && r.Rules.Isolation != grant.IsolationHardware {
		c.minMiB = mib
	}
	switch {
	case pod.Group != "":
		c.fixed = "it is in a group"
	case pod.Priority > p.Input.Pending.Priority:
		c.fixed = "its priority is higher"
	default:
		c.fixed = p.Fixed(pod.UID)
	}
	return c, c.evaluation.Err()
}

func (p *planner) fits(o *engine.Overlay, node string) bool {
	verdict := p.pending.evaluation.On(o, node)
	return verdict.Fits
}

// resize keeps the memory of as many pods as possible, the most important first.
func (p *planner) resize(node string) (Plan, bool) {
	plan := Plan{Pod: name(p.pending.pod), Node: node}
	var able []candidate
	for _, c := range p.byNode[node] {
		if c.minMiB > 0 {
			able = append(able, c)
		}
	}
	shrunk := func(all []candidate) *engine.Overlay {
		o := p.snapshot.Overlay()
		for _, c := range all {
			o, _ = o.Shrink(node, c.pod.UID, c.minMiB)
		}
		return o
	}
	if len(able) == 0 || !p.fits(shrunk(able), node) {
		return plan, false
	}
	for i := 0; i < len(able); {
		rest := slices.Delete(slices.Clone(able), i, i+1)
		if p.fits(shrunk(rest), node) {
			able = rest
		} else {
			i++
		}
	}
	for _, c := range able {
		_, containers := p.snapshot.Overlay().Shrink(node, c.pod.UID, c.minMiB)
		plan.Resizes = append(plan.Resizes, Resize{Pod: name(c.pod), UID: c.pod.UID, MemoryMiB: byContainer(c.pod, containers)})
	}
	return plan, true
}

func byContainer(pod *scheduler.Pod, containers [][]grant.Share) map[string]int64 {
	mib := map[string]int64{}
	for i, shares := range containers {
		for _, s := range shares {
			if i < len(pod.Containers) {
				mib[pod.Containers[i].Name] = max(mib[pod.Containers[i].Name], s.MemoryMiB)
			}
		}
	}
	return mib
}

// moveSmall keeps large pods, which are hard to place elsewhere; moveLarge keeps small ones, which moves fewer.
func (p *planner) moveSmall(node string) (Plan, bool) { return p.move(node, p.movable(node)) }

func (p *planner) moveLarge(node string) (Plan, bool) {
	all := p.movable(node)
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.pod.Priority, a.pod.Priority), cmp.Compare(a.request.GPUMemory(), b.request.GPUMemory()))
	})
	return p.move(node, all)
}

func (p *planner) movable(node string) []candidate {
	return slices.DeleteFunc(slices.Clone(p.byNode[node]), func(c candidate) bool { return c.fixed != "" })
}

// move spares the pods in their order, and places the others, the largest first.
func (p *planner) move(node string, movable []candidate) (plan Plan, ok bool) {
	plan = Plan{Pod: name(p.pending.pod), Node: node}
	o := p.snapshot.Overlay()
	for _, c := range movable {
		o = o.Without(node, c.pod.UID)
	}
	if !p.fits(o, node) {
		return plan, false
	}
	var moved []candidate
	for _, c := range movable {
		if spared := o.Restore(node, c.pod.UID); p.fits(spared, node) {
			o = spared
		} else {
			moved = append(moved, c)
		}
	}
	if o, ok = p.pending.evaluation.Put(o, node, p.pending.request); !ok {
		return plan, false
	}
	plan.GPUs = o.GPUs(node, p.pending.pod.UID)
	slices.SortStableFunc(moved, func(a, b candidate) int { return cmp.Compare(b.request.GPUMemory(), a.request.GPUMemory()) })
	for _, c := range moved {
		to := c.evaluation.BestOn(o, p.allowed(c))
		if to == "" {
			return plan, false
		}
		if o, ok = c.evaluation.Put(o, to, c.request); !ok {
			return plan, false
		}
		plan.Moves = append(plan.Moves, Move{Pod: name(c.pod), UID: c.pod.UID, From: node, To: to})
	}
	return plan, true
}

func (p *planner) allowed(c candidate) (nodes []string) {
	for _, node := range c.evaluation.Nodes() {
		if p.Allowed(c.pod.UID, node) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func name(pod *scheduler.Pod) string { return pod.Namespace + "/" + pod.Name }
