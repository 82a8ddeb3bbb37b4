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

// PostFilter implements fwk.PostFilterPlugin: it reports why no node fits. It runs only if
// DefaultPreemption evicted no pods.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, object *v1.Pod,
	statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := cycleOf(state)
	p.groups.failed(object, c.waitsForGPUs(statuses))
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	counts, _ := c.evaluation.Reasons()
	if main := counts.Main(); main != engine.OK {
		p.metrics.Denied(component, main.String())
	}
	if counts[engine.ResourceQuotaNotFit] > 0 {
		p.quotaQueue.add(object, p.handle, c.quotas)
	}
	if p.engine.Resized() != c.resized { // since the evaluation
		activate(p.handle, object)
	}
	status := fwk.NewStatus(fwk.Unschedulable)
	if text := c.evaluation.Summary(); text != "" {
		status.AppendReason(text)
	}
	return nil, status
}

// waitsForGPUs reports whether other pods have the GPUs of a rejected node.
func (c *cycle) waitsForGPUs(statuses fwk.NodeToStatusReader) bool {
	return c != nil && statuses != nil && slices.ContainsFunc(c.evaluation.Nodes(), func(node string) bool {
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

func (s quotaSink) SetQuota(namespace, name string, l quota.Limits) {
	s.engine.SetQuota(namespace, name, l)
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
