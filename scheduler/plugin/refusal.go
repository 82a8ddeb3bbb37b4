package plugin

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// PostFilter implements fwk.PostFilterPlugin. It is after DefaultPreemption (multiPoint puts
// it there), and so only asked where nobody was evicted for the pod. It makes no room: it
// tells why there is none, and what becomes of the pod's group.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, object *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := cycleOf(state)
	p.groups.failed(object, c.wantsOthersGPUs(statuses))
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	var counts [256]int
	main := engine.OK
	for _, node := range c.evaluation.Nodes() {
		verdict := c.evaluation.Verdict(node)
		code := verdict.Reason()
		if counts[code]++; code != engine.OK && (main == engine.OK || counts[code] > counts[main]) {
			main = code
		}
	}
	if main != engine.OK {
		p.metrics.Denied(component, main.String())
	}
	if counts[engine.ResourceQuotaNotFit] > 0 {
		p.refused.add(object, p.handle, c.quotas)
	}
	if p.engine.Resized() != c.resized { // since it was judged
		waiter{object, p.handle}.activate()
	}
	status := fwk.NewStatus(fwk.Unschedulable)
	if text := c.evaluation.Summary(); text != "" {
		status.AppendReason(text)
	}
	return nil, status
}

// wantsOthersGPUs says whether it was this plugin that refused a node, for what others have of
// its GPUs.
func (c *cycle) wantsOthersGPUs(statuses fwk.NodeToStatusReader) bool {
	return c != nil && statuses != nil && slices.ContainsFunc(c.evaluation.Nodes(), func(node string) bool {
		status := statuses.Get(node)
		return status.Plugin() == Name && status.Code() == fwk.Unschedulable
	})
}

// refused are the pods for which a quota left no room: no event of kube-scheduler's tells
// of quotas.
type refused struct {
	mu   sync.Mutex
	pods map[types.UID]waiter
	// changes counts those of quotas by their namespace; empty: of all.
	changes map[string]uint64
}

type waiter struct {
	pod    *v1.Pod
	handle fwk.Handle
}

func newRefused() *refused {
	return &refused{pods: map[types.UID]waiter{}, changes: map[string]uint64{}}
}

// since is another number whenever a quota of the namespace has changed.
func (r *refused) since(namespace string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count(namespace)
}

func (r *refused) count(namespace string) uint64 { return r.changes[""] + r.changes[namespace] }

// add is for a pod that was judged by quotas as they were then. If they have changed meanwhile
// it is tried again at once: kube-scheduler knows that it comes back to the queue.
func (r *refused) add(pod *v1.Pod, handle fwk.Handle, then uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := waiter{pod, handle}
	if r.count(pod.Namespace) != then {
		w.activate()
		return
	}
	r.pods[pod.UID] = w
}

func (w waiter) activate() {
	w.handle.Activate(klog.Background(), map[string]*v1.Pod{w.pod.Namespace + "/" + w.pod.Name: w.pod})
}

// forget is for a pod that is placed or gone.
func (r *refused) forget(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, pod.UID)
}

// again has the pods of a namespace tried again; empty: of all. One that is refused again
// comes back.
func (r *refused) again(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes[namespace]++
	for uid, w := range r.pods {
		if namespace == "" || w.pod.Namespace == namespace {
			delete(r.pods, uid)
			w.activate()
		}
	}
}

// quotaSink tells the engine, and then has those pods tried again that a quota has refused.
type quotaSink struct {
	engine  *engine.Engine
	refused *refused
}

func (s quotaSink) SetQuota(namespace, name string, l quota.Limits) {
	s.engine.SetQuota(namespace, name, l)
	s.refused.again(namespace)
}

func (s quotaSink) DeleteQuota(namespace, name string) {
	s.engine.DeleteQuota(namespace, name)
	s.refused.again(namespace)
}

func (s quotaSink) SetGPUQuota(gpus *quota.GPUs) {
	s.engine.SetGPUQuota(gpus)
	s.refused.again("")
}
