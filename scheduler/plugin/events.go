package plugin

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

const nodeActions = fwk.Add | fwk.UpdateNodeAnnotation | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable

// EventsToRegister implements fwk.EnqueueExtensions. For quotas and groups, see quotaQueue and groups.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: p.afterPodDelete},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}, QueueingHintFn: p.afterPodUpdate},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: nodeActions}, QueueingHintFn: p.afterNode},
	}, nil
}

// afterPodDelete retries the pod if the deleted or ended one had GPUs.
func (p *Plugin) afterPodDelete(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	gone, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	group, in := p.groups.name(pod)
	if of, ok := p.groups.name(gone); in && ok && of == group && p.groups.exists(gone) {
		return fwk.QueueSkip, nil // its own group released too few GPUs
	}
	if _, granted := gone.Annotations[api.AnnotationGrant]; granted || p.requestsGPUs(gone) {
		return p.queueIfValid(pod), nil
	}
	return fwk.QueueSkip, nil
}

// requestsGPUs is false for an invalid request.
func (p *Plugin) requestsGPUs(pod *v1.Pod) bool {
	r, err := p.engine.Request(convert.Pod(pod))
	return err == nil && r != nil
}

// queueIfValid skips pods with an invalid request: only their own change helps.
func (p *Plugin) queueIfValid(pod *v1.Pod) fwk.QueueingHint {
	if _, err := p.engine.Request(convert.Pod(pod)); err != nil {
		return fwk.QueueSkip
	}
	return fwk.Queue
}

// afterPodUpdate retries the pod if its labels or annotations changed.
func (p *Plugin) afterPodUpdate(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, _ := before.(*v1.Pod)
	now, _ := after.(*v1.Pod)
	if old == nil || now == nil || now.UID != pod.UID {
		return fwk.QueueSkip, nil
	}
	if maps.Equal(old.Labels, now.Labels) && maps.Equal(old.Annotations, now.Annotations) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// afterNode also handles allocatable resources: see gpuNodes.
func (p *Plugin) afterNode(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, _ := before.(*v1.Node)
	now, _ := after.(*v1.Node)
	switch {
	case now == nil:
		return fwk.Queue, nil
	case old == nil && !hasGPUs(now):
		return fwk.QueueSkip, nil
	case old == nil || changed(old.Annotations, now.Annotations, api.AnnotationNodeGPUs, api.AnnotationHAMiRegister,
		api.AnnotationHAMiScore, api.AnnotationHAMiCordon):
		return p.queueIfValid(pod), nil
	case grew(old.Status.Allocatable, now.Status.Allocatable):
		return p.queueIfValid(pod), nil
	case p.readsLabels(pod) && !maps.Equal(old.Labels, now.Labels):
		return p.queueIfValid(pod), nil
	}
	return fwk.QueueSkip, nil
}

// readsLabels reports whether labels of nodes count for the pod in this plugin.
func (p *Plugin) readsLabels(pod *v1.Pod) bool {
	if p.args.GPUQuota != "" || len(p.args.NodeSelector) > 0 {
		return true
	}
	group := p.groups.of(pod)
	return group != nil && (len(p.args.GroupTopology) > 0 || group.Topology() != "")
}

// grew reports whether any resource increased.
func grew(old, now v1.ResourceList) bool {
	for name, quantity := range now {
		if before := old[name]; quantity.Cmp(before) > 0 {
			return true
		}
	}
	return false
}

func hasGPUs(n *v1.Node) bool {
	inventory, _, err := wire.DecodeNode(convert.Node(n))
	return err == nil && len(inventory.GPUs) > 0
}

func changed(old, now map[string]string, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return old[key] != now[key] })
}
