package plugin

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// EventsToRegister implements fwk.EnqueueExtensions: what can make room for a pod that was
// refused. Quotas and groups have informers of their own (refused, groups).
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: p.afterPodIsGone},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}, QueueingHintFn: p.afterPodHasChanged},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable}, QueueingHintFn: p.afterNode},
	}, nil
}

// afterPodIsGone: one that had GPUs has left room, on the node and in quotas. To
// kube-scheduler's informer a pod that has ended is gone.
func (p *Plugin) afterPodIsGone(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	gone, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil // never; and to try in vain is better than to forget
	}
	if key := groupOf(pod); key != "" && key == groupOf(gone) && p.groups.exists(gone) {
		return fwk.QueueSkip, nil // its group gave back what it held: that is what it found too little
	}
	if _, granted := gone.Annotations[grant.AnnotationGrant]; granted || p.asks(gone) {
		return p.unlessHopeless(pod), nil
	}
	return fwk.QueueSkip, nil
}

// asks says whether the pod asks for GPUs. One whose request makes no sense has none.
func (p *Plugin) asks(pod *v1.Pod) bool {
	r, err := p.engine.Request(kube.Pod(pod))
	return err == nil && r != nil
}

// unlessHopeless: a pod whose request makes no sense waits for its own change alone.
func (p *Plugin) unlessHopeless(pod *v1.Pod) fwk.QueueingHint {
	if _, err := p.engine.Request(kube.Pod(pod)); err != nil {
		return fwk.QueueSkip
	}
	return fwk.Queue
}

// afterPodHasChanged: the pod itself, in what its request is read from. What others have
// doesn't change while they run.
func (p *Plugin) afterPodHasChanged(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
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

// afterNode: its GPUs have come or changed, or the labels that quotas go by; or the kubelet
// can give out more of something (see offering).
func (p *Plugin) afterNode(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, _ := before.(*v1.Node)
	now, _ := after.(*v1.Node)
	switch {
	case now == nil:
		return fwk.Queue, nil
	case old == nil && !hasGPUs(now):
		return fwk.QueueSkip, nil
	case old == nil || changed(old.Annotations, now.Annotations, wire.AnnotationGPUs, wire.AnnotationRegister, wire.AnnotationScore, wire.AnnotationCordon):
		return p.unlessHopeless(pod), nil
	case grew(old.Status.Allocatable, now.Status.Allocatable):
		return p.unlessHopeless(pod), nil
	case p.args.GPUQuota != "" && !maps.Equal(old.Labels, now.Labels):
		return p.unlessHopeless(pod), nil
	}
	return fwk.QueueSkip, nil
}

// grew says whether there is more of any resource.
func grew(old, now v1.ResourceList) bool {
	for name, quantity := range now {
		if before := old[name]; quantity.Cmp(before) > 0 {
			return true
		}
	}
	return false
}

func hasGPUs(n *v1.Node) bool {
	inventory, _, err := wire.DecodeNode(kube.Node(n))
	return err == nil && len(inventory.GPUs) > 0
}

func changed(old, now map[string]string, keys ...string) bool {
	for _, key := range keys {
		if old[key] != now[key] {
			return true
		}
	}
	return false
}
