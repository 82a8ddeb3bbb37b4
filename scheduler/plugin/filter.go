package plugin

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// PreFilter implements fwk.PreFilterPlugin.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, object *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	began := time.Now()
	if status := p.groups.gather(object); status != nil {
		return nil, status
	}
	pod := kube.Pod(object)
	pod.Annotations = kube.Unowned(pod.Annotations)
	r, err := p.engine.Request(pod)
	switch {
	case err != nil:
		p.metrics.Denied(component, "InvalidRequest")
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	case r == nil:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if p.bypassed.Load() {
		return nil, fwk.AsStatus(errBypassed)
	}
	if err := p.feeding.Wait(ctx); err != nil { // at the start alone
		return nil, fwk.AsStatus(err)
	}
	p.behind.catchUp(nodes)
	quotas, resized := p.refused.since(object.Namespace), p.engine.Resized()
	evaluation := p.engine.Evaluate(p.engine.Snapshot(), pod, r)
	p.metrics.Observe(component, "evaluate", began, evaluation.Err())
	if err := evaluation.Err(); err != nil { // a policy that there is not
		p.metrics.Denied(component, "InvalidRequest")
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	state.Write(cycleKey, &cycle{pod: pod, request: r, evaluation: evaluation, quotas: quotas, resized: resized})
	if names := p.offering.names(evaluation.Snapshot()); len(names) > 0 {
		return &fwk.PreFilterResult{NodeNames: names}, nil
	}
	return nil, nil // Filter says why of each node
}

// offering is the nodes with GPUs. They are PreFilter's result for each pod with GPUs, not
// to spare Filter the others: kube-scheduler counts a plugin that has named nodes among those
// that a pod may have failed for, and asks its hints. Else a pod that another plugin has refused
// would be woken by that plugin's hints alone, and NodeResourcesFit's for nodes don't
// know of ignoredResources (1.36): to them no node ever has room for gpumem.
type offering struct {
	mu     sync.Mutex
	filled bool
	roster uint64
	set    sets.Set[string]
}

// names is not changed by anybody: kube-scheduler makes a copy.
func (o *offering) names(s *engine.Snapshot) sets.Set[string] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.filled || o.roster != s.NodesVersion() {
		o.filled, o.roster, o.set = true, s.NodesVersion(), sets.New(s.Nodes()...)
	}
	return o.set
}

// PreFilterExtensions implements fwk.PreFilterPlugin.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod implements fwk.PreFilterExtensions: of a pod that was removed, and of one that is
// nominated to the node and has no GPUs yet.
func (p *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return lost("AddPod")
	}
	pod := kube.Pod(add.GetPod())
	r, err := p.engine.Request(pod)
	if err != nil {
		r = nil // nominated before the cluster's settings changed: it will not be placed
	}
	c.overlay = p.engine.With(c.start(), node.Node().Name, pod, r)
	return nil
}

// RemovePod implements fwk.PreFilterExtensions.
func (p *Plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return lost("RemovePod")
	}
	c.overlay = c.start().Without(node.Node().Name, string(remove.GetPod().UID))
	return nil
}

// start is what AddPod and RemovePod go on from.
func (c *cycle) start() *engine.Overlay {
	if c.overlay != nil {
		return c.overlay
	}
	return c.evaluation.Snapshot().Overlay()
}

// Filter implements fwk.FilterPlugin.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return lost("Filter")
	}
	verdict := c.verdict(node.Node().Name)
	if verdict.Fits {
		return nil
	}
	return refusal(&verdict)
}

// refusal is the status of a node without room. Its text is the same for all nodes with
// the reason, for kube-scheduler counts them by it; the numbers are PostFilter's.
func refusal(verdict *engine.Verdict) *fwk.Status {
	code := fwk.UnschedulableAndUnresolvable
	if reasons := verdict.Reasons(); reasons.Evictable() {
		code = fwk.Unschedulable
	}
	return fwk.NewStatus(code, "node(s): "+verdict.Reason().Brief())
}

// SignPod implements fwk.SignPlugin: two pods with the same signature are judged equally.
func (p *Plugin) SignPod(_ context.Context, object *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	r, err := p.engine.Request(kube.Pod(object))
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if r == nil {
		return nil, nil
	}
	// The namespace is whose quota it is.
	return []fwk.SignFragment{{Key: signKey, Value: []string{r.Signature, object.Namespace}}}, nil
}

const signKey = "gpuslice.io/Request.Signature"
