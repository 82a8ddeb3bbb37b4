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
	if status := p.groups.checkComplete(object); status != nil {
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
	if err := p.feed.Wait(ctx); err != nil { // at startup
		return nil, fwk.AsStatus(err)
	}
	p.informerSync.update(nodes)
	quotas, resized := p.quotaQueue.version(object.Namespace), p.engine.Resized()
	evaluation := p.engine.Evaluate(p.engine.Snapshot(), pod, r)
	p.metrics.Observe(component, "evaluate", began, evaluation.Err())
	if err := evaluation.Err(); err != nil { // unknown policy
		p.metrics.Denied(component, "InvalidRequest")
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	state.Write(cycleKey, &cycle{pod: pod, request: r, evaluation: evaluation, quotas: quotas, resized: resized})
	if names := p.gpuNodes.names(evaluation.Snapshot()); len(names) > 0 {
		return &fwk.PreFilterResult{NodeNames: names}, nil
	}
	return nil, nil // Filter returns the reason of each node
}

// gpuNodes caches the names of nodes with GPUs, PreFilter's result for pods with GPUs. With it,
// kube-scheduler also uses this plugin's queueing hints when another plugin rejected the pod. The
// hints of NodeResourcesFit ignore ignoredResources (1.36): no node ever has room for gpumem.
type gpuNodes struct {
	mu     sync.Mutex
	filled bool
	roster uint64
	set    sets.Set[string]
}

// names returns a shared set: do not change it.
func (o *gpuNodes) names(s *engine.Snapshot) sets.Set[string] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.filled || o.roster != s.NodesVersion() {
		o.filled, o.roster, o.set = true, s.NodesVersion(), sets.New(s.Nodes()...)
	}
	return o.set
}

// PreFilterExtensions implements fwk.PreFilterPlugin.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod implements fwk.PreFilterExtensions: a removed pod, or one nominated to the node.
func (p *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return missingPreFilter("AddPod")
	}
	pod := kube.Pod(add.GetPod())
	r, err := p.engine.Request(pod)
	if err != nil {
		r = nil // invalid since the settings changed: it cannot be scheduled
	}
	c.overlay = p.engine.With(c.start(), node.Node().Name, pod, r)
	return nil
}

// RemovePod implements fwk.PreFilterExtensions.
func (p *Plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return missingPreFilter("RemovePod")
	}
	c.overlay = c.start().Without(node.Node().Name, string(remove.GetPod().UID))
	return nil
}

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
		return missingPreFilter("Filter")
	}
	verdict := c.verdict(node.Node().Name)
	if verdict.Fits {
		return nil
	}
	return rejection(&verdict)
}

// rejection returns the status of a node that does not fit. Its text has no numbers, because
// kube-scheduler counts nodes by the text; PostFilter reports the numbers.
func rejection(verdict *engine.Verdict) *fwk.Status {
	code := fwk.UnschedulableAndUnresolvable
	if reasons := verdict.Reasons(); reasons.Evictable() {
		code = fwk.Unschedulable
	}
	return fwk.NewStatus(code, "node(s): "+verdict.Reason().Brief())
}

// SignPod implements fwk.SignPlugin: pods with equal signatures get equal results. The namespace is
// part of it because of quotas.
func (p *Plugin) SignPod(_ context.Context, object *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	r, err := p.engine.Request(kube.Pod(object))
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if r == nil {
		return nil, nil
	}
	return []fwk.SignFragment{{Key: signKey, Value: []string{r.Signature, object.Namespace}}}, nil
}

const signKey = "gpuslice.io/Request.Signature"
