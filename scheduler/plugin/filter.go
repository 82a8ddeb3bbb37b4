package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, object *v1.Pod,
	nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	began := time.Now()
	if status := p.groups.checkComplete(object); status != nil {
		return nil, status
	}
	pod := convert.Pod(object)
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
	if _, err := p.takeover().Term(ctx); err != nil {
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
	c := &cycle{pod: pod, request: r, evaluation: evaluation, quotas: quotas, resized: resized}
	state.Write(cycleKey, c)
	if status := p.planned(c, object); status != nil {
		return nil, status
	}
	if c.planned != "" {
		return &fwk.PreFilterResult{NodeNames: sets.New(c.planned)}, nil
	}
	if c.domain, err = p.domainOf(object, evaluation.Snapshot()); err != nil {
		c.noDomain = true
		return nil, noDomain(err)
	}
	if c.domain != nil {
		return &fwk.PreFilterResult{NodeNames: sets.New(c.domain.Nodes...)}, nil
	}
	if names := p.named(c, object); names != nil {
		return &fwk.PreFilterResult{NodeNames: names}, nil
	}
	return nil, nil
}

// gpuNodes caches the names of nodes with GPUs. Because PreFilter returns names, kube-scheduler uses this
// plugin's queueing hints also when NodeResourcesFit rejected the pod: its hints ignore ignoredResources
// (1.36).
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

func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod implements fwk.PreFilterExtensions, for removed and nominated pods.
func (p *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return missingPreFilter("AddPod")
	}
	pod := convert.Pod(add.GetPod())
	r, err := p.engine.Request(pod)
	if err != nil {
		r = nil // invalid since settings changed
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
	c.evicting = true
	return nil
}

func (c *cycle) start() *engine.Overlay {
	if c.overlay != nil {
		return c.overlay
	}
	return c.evaluation.Snapshot().Overlay()
}

func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return missingPreFilter("Filter")
	}
	if c.narrow && c.evicting {
		return fwk.NewStatus(fwk.Unschedulable, "no pods are evicted before all nodes are tried")
	}
	if c.evicting && c.group != nil {
		return fwk.NewStatus(fwk.Unschedulable, "pods are evicted for the group as a whole")
	}
	// kube-scheduler also tries nodes that PreFilter did not name: a nominated one, and that of an earlier pod with the same signature.
	if c.domain != nil && c.domain.required && !slices.Contains(c.domain.Nodes, node.Node().Name) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s): not in the domain of the pod's group")
	}
	verdict := c.verdict(node.Node().Name)
	switch {
	case !verdict.Fits:
		return rejection(&verdict)
	case !c.kept.leaves(c, node.Node().Name):
		return fwk.NewStatus(fwk.Unschedulable, "node(s): GPUs are kept for a group")
	}
	return nil
}

// rejection has all reasons of the node's GPUs, without numbers, because kube-scheduler counts nodes by text. PostFilter adds numbers.
func rejection(verdict *engine.Verdict) *fwk.Status {
	code, counts := fwk.UnschedulableAndUnresolvable, verdict.Reasons()
	if counts.Evictable() {
		code = fwk.Unschedulable
	}
	var texts []string
	for _, reason := range counts.Codes() {
		texts = append(texts, "node(s): "+reason.Brief())
	}
	return fwk.NewStatus(code, texts...)
}

// SignPod implements fwk.SignPlugin. The namespace counts because of quotas, and the group because of its domain.
func (p *Plugin) SignPod(_ context.Context, object *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	r, err := p.engine.Request(convert.Pod(object))
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if r == nil {
		return nil, nil
	}
	group := ""
	if name, in := p.groups.name(object); in {
		group = name.String()
	}
	return []fwk.SignFragment{{Key: signKey, Value: []string{r.Signature, object.Namespace, group}}}, nil
}

const signKey = "gpuslice.io/Request.Signature"

const cycleKey fwk.StateKey = Name

type cycle struct {
	pod             *scheduler.Pod
	request         *request.Request
	evaluation      *engine.Evaluation
	quotas, resized uint64               // versions before the evaluation
	overlay         *engine.Overlay      // changes of AddPod and RemovePod; may be nil
	evicting        bool                 // RemovePod was called: a preemption
	narrow          bool                 // not all nodes with GPUs are named
	preferences     bool                 // the pod or the nodes have other preferences than GPUs
	domain          *domain              // nil: any node
	group           *gang.Group          // nil: none, or its pods need not wait
	planned         string               // the node that the plan for the group has for the pod; "": there is no plan
	waits           bool                 // for the victims of the plan
	kept            *kept                // room for groups; nil: none
	noRoom          error                // why no pods are evicted for the group
	noDomain        bool                 // the group's required one has no room
	placement       *scheduler.Placement // set by Reserve
	bindCalled      bool
	bindUnknown     bool // Bind could not find out whether the pod was bound
}

// Clone implements fwk.StateData. An overlay is never changed, only replaced.
func (c *cycle) Clone() fwk.StateData {
	clone := *c
	return &clone
}

// cycleOf returns nil for a pod that requests no GPU.
func cycleOf(state fwk.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

func (c *cycle) verdict(node string) engine.Verdict {
	if c.overlay != nil {
		return c.evaluation.On(c.overlay, node)
	}
	return c.evaluation.Verdict(node)
}

func missingPreFilter(point string) *fwk.Status {
	return fwk.AsStatus(fmt.Errorf("%s: PreFilter was not called: enable %s at all extension points (multiPoint)", point, Name))
}

// PostFilter implements fwk.PostFilterPlugin: it reports why no node fits. It runs only if
// DefaultPreemption evicted no pods.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, object *v1.Pod,
	statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := cycleOf(state)
	if c != nil && c.narrow {
		p.secondTries.add(object)
		activate(p.handle, object)
		return nil, fwk.NewStatus(fwk.Unschedulable, "only the nodes with the best GPUs were tried, the others are tried next")
	}
	if c != nil && p.groups.leave(c.domain) {
		activate(p.handle, object)
		return nil, fwk.NewStatus(fwk.Unschedulable, "only the nodes of one domain were tried for the group, the others are tried next")
	}
	if c != nil && c.kept != nil {
		p.plans.block(object, p.handle)
	}
	if c != nil && c.waits {
		if c.planned == "" {
			return nil, fwk.NewStatus(fwk.Unschedulable)
		}
		return nominated(c.planned)
	}
	if c != nil && c.planned != "" && p.keepsPlan(object, c, statuses) {
		return nominated(c.planned)
	}
	released := p.groups.failed(object, c.waitsForGPUs(statuses))
	if c != nil && c.group != nil && !released {
		if node := p.makeRoom(object, c, statuses); node != "" {
			return nominated(node)
		}
	}
	status := fwk.NewStatus(fwk.Unschedulable)
	if c == nil {
		return nil, status
	}
	if c.noRoom != nil {
		status.AppendReason(c.noRoom.Error())
	}
	if c.noDomain {
		return nil, status
	}
	counts, _ := c.evaluation.Reasons()
	if main := counts.Main(); main != engine.OK {
		p.metrics.Denied(component, main.String())
	}
	if counts[engine.ResourceQuotaNotFit] > 0 {
		p.quotaQueue.add(object, p.handle, c.quotas)
	}
	if counts[engine.ResourceQuotaNotFit] > 0 {
		if node := p.reclaim(ctx, object, c); node != "" {
			return nominated(node)
		}
	}
	if p.engine.Resized() != c.resized { // since the evaluation
		activate(p.handle, object)
	}
	if text := c.evaluation.Summary(); text != "" {
		status.AppendReason(text)
	}
	return nil, status
}

func nominated(node string) (*fwk.PostFilterResult, *fwk.Status) {
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatedNodeName: node, NominatingMode: fwk.ModeOverride}}, nil
}

// waitsForGPUs reports whether other pods have the GPUs of a rejected node.
func (c *cycle) waitsForGPUs(statuses fwk.NodeToStatusReader) bool {
	return c != nil && c.noDomain || c != nil && statuses != nil && slices.ContainsFunc(c.evaluation.Nodes(), func(node string) bool {
		status := statuses.Get(node)
		return status.Plugin() == Name && status.Code() == fwk.Unschedulable
	})
}

// activate makes kube-scheduler retry the pods now.
func activate(handle fwk.Handle, pods ...*v1.Pod) {
	byName := make(map[string]*v1.Pod, len(pods))
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	handle.Activate(klog.Background(), byName)
}

// quotaQueue has the pods that quotas rejected: kube-scheduler has no event for quotas.
type quotaQueue struct {
	mu   sync.Mutex
	pods map[types.UID]queuedPod
	// changes counts quota changes by namespace; "" is for all.
	changes map[string]uint64
}

type queuedPod struct {
	pod    *v1.Pod
	handle fwk.Handle
}

func newQuotaQueue() *quotaQueue {
	return &quotaQueue{pods: map[types.UID]queuedPod{}, changes: map[string]uint64{}}
}

// version changes with every quota of the namespace.
func (q *quotaQueue) version(namespace string) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changes[""] + q.changes[namespace]
}

// add retries the pod now if quotas have changed since version.
func (q *quotaQueue) add(pod *v1.Pod, handle fwk.Handle, version uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.changes[""]+q.changes[pod.Namespace] != version {
		activate(handle, pod)
		return
	}
	q.pods[pod.UID] = queuedPod{pod, handle}
}

func (q *quotaQueue) remove(pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pods, pod.UID)
}

// requeue retries the pods of a namespace; "" is for all.
func (q *quotaQueue) requeue(namespace string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes[namespace]++
	for uid, p := range q.pods {
		if namespace == "" || p.pod.Namespace == namespace {
			delete(q.pods, uid)
			activate(p.handle, p.pod)
		}
	}
}

type quotaSink struct {
	engine *engine.Engine
	queue  *quotaQueue
}

func (s quotaSink) SetQuota(namespace, name string, q quota.Quota) {
	s.engine.SetQuota(namespace, name, q)
	if q.Pool != "" { // other namespaces may borrow more
		namespace = ""
	}
	s.queue.requeue(namespace)
}

func (s quotaSink) DeleteQuota(namespace, name string) {
	s.engine.DeleteQuota(namespace, name)
	s.queue.requeue(namespace)
}

func (s quotaSink) SetGPUQuota(gpus *quota.GPUs) {
	s.engine.SetGPUQuota(gpus)
	s.queue.requeue("")
}
