package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const (
	ExplainedNone       = "no GPUs"
	ExplainedImpossible = "impossible"
	ExplainedPending    = "pending"
	// ExplainedReserved: being bound, or waiting for the pod group.
	ExplainedReserved = "reserved"
	ExplainedBound    = "bound"
	// ExplainedUnserved: runs without the GPUs it requests.
	ExplainedUnserved = "unserved"
)

// Explanation is the output of gpuslice explain.
type Explanation struct {
	Pod   string `json:"pod"` // namespace/name
	UID   string `json:"uid"`
	State string `json:"state"`
	Text  string `json:"text"`
	// Problem is about the annotations.
	Problem string `json:"problem,omitempty"`
	// Nodes are the verdicts, for a pending pod.
	Nodes      []NodeVerdict   `json:"nodes,omitempty"`
	Node       string          `json:"node,omitempty"`
	Containers []ContainerGPUs `json:"containers,omitempty"`
	// Choice is nil if another process chose the GPUs.
	Choice *Choice `json:"choice,omitempty"`
}

type NodeVerdict struct {
	Node   string `json:"node"`
	Fits   bool   `json:"fits"`
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text"`
	Score  int64  `json:"score,omitempty"`
}

type ContainerGPUs struct {
	Container string        `json:"container"`
	Shares    []grant.Share `json:"shares"`
}

// Choice is the node's state before the GPUs were chosen.
type Choice struct {
	At         time.Time   `json:"at"`
	NodePolicy string      `json:"nodePolicy"`
	GPUPolicy  string      `json:"gpuPolicy"`
	GPUs       []GPUChoice `json:"gpus"`
}

// GPUChoice is a GPU before the choice.
type GPUChoice struct {
	UUID   string        `json:"uuid"`
	Index  int           `json:"index"`
	Chosen bool          `json:"chosen"`
	Used   scheduler.Use `json:"used"`
	Total  scheduler.Use `json:"total"`
}

type choice struct {
	at        time.Time
	node, gpu string
	gpus      *gpus
	used      []scheduler.Use
}

func (e *Engine) newChoice(r *request.Request, n *node) *choice {
	o := &e.options
	return &choice{
		at: o.Clock(), gpus: n.gpus, used: n.used,
		node: cmp.Or(r.Rules.NodePolicy, o.NodePolicy, choose.Binpack), gpu: cmp.Or(r.Rules.GPUPolicy, o.GPUPolicy, choose.Spread),
	}
}

func (c *choice) public(h *allocation) *Choice {
	if c == nil {
		return nil
	}
	out := &Choice{At: c.at, NodePolicy: c.node, GPUPolicy: c.gpu}
	for i := range c.gpus.total {
		gpu := &c.gpus.inventory.GPUs[i]
		chosen := slices.ContainsFunc(h.byUUID, func(u gpuUse) bool { return u.uuid == gpu.UUID })
		out.GPUs = append(out.GPUs, GPUChoice{UUID: gpu.UUID, Index: gpu.Index, Chosen: chosen, Used: c.used[i], Total: c.gpus.total[i]})
	}
	return out
}

const unservedHint = "another scheduler or spec.nodeName placed it there; delete it so that it is scheduled again"

func (e *Engine) Explain(object *scheduler.Pod) Explanation {
	x := Explanation{Pod: object.Namespace + "/" + object.Name, UID: object.UID}
	r, err := e.Request(object)
	e.mu.Lock()
	e.expire()
	if p := e.pods[object.UID]; p != nil {
		x.Problem = p.problem
		if p.allocation != nil {
			e.explainAllocated(&x, object, p)
		}
	}
	e.mu.Unlock()
	switch {
	case x.State != "":
	case err != nil:
		x.State, x.Text = ExplainedImpossible, err.Error()
	case r == nil:
		x.State, x.Text = ExplainedNone, "it requests no GPU"
	case object.Node != "":
		x.State, x.Node = ExplainedUnserved, object.Node
		x.Text = "it is on node " + object.Node + " but was granted no GPU: " + unservedHint
	default:
		e.explainPending(&x, object, r)
	}
	return x
}

// The caller holds mu.
func (e *Engine) explainAllocated(x *Explanation, object *scheduler.Pod, p *pod) {
	placement, where := p.granted, "it is on node "
	x.State, x.Node = ExplainedBound, p.allocation.placement.Node
	if !p.bound() {
		placement, where = p.allocation.placement, "it is being bound, or waits for its pod group; GPUs are reserved on node "
		x.State = ExplainedReserved
	}
	var parts []string
	for i, shares := range placement.Containers {
		if len(shares) == 0 || i >= len(object.Containers) {
			continue
		}
		x.Containers = append(x.Containers, ContainerGPUs{object.Containers[i].Name, shares})
		for _, s := range shares {
			parts = append(parts, fmt.Sprintf("%s has %d MiB of %s", object.Containers[i].Name, s.MemoryMiB, s.UUID))
		}
	}
	x.Choice = p.choice.public(p.allocation)
	x.Text = where + x.Node + ": " + strings.Join(parts, ", ")
	if placement.Generation > 0 {
		x.Text += fmt.Sprintf("; resized %d times", placement.Generation)
	}
}

func (e *Engine) explainPending(x *Explanation, object *scheduler.Pod, r *request.Request) {
	x.State = ExplainedPending
	v := e.evaluateAside(e.Snapshot(), object, r)
	if v.Err() != nil {
		x.State, x.Text = ExplainedImpossible, v.Err().Error()
		return
	}
	fitting := 0
	for _, name := range v.Nodes() {
		verdict := v.Verdict(name)
		n := NodeVerdict{Node: name, Fits: verdict.Fits, Text: strings.TrimPrefix(verdict.Text(), name+": ")}
		if verdict.Fits {
			fitting++
			n.Score = verdict.Score
		} else {
			n.Reason = verdict.Reason().String()
		}
		x.Nodes = append(x.Nodes, n)
	}
	if x.Text = v.Summary(); x.Text == "" {
		x.Text = fmt.Sprintf("it fits on %d of %d nodes with GPUs: it is tried soon, or waits for something other than "+
			"GPUs (see its events)", fitting, len(x.Nodes))
	}
}
