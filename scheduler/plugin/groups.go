package plugin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// groups schedule the pods of a group together: each waits in Permit, with its GPUs reserved, until
// the group's minimum waits.
type groups struct {
	timeout time.Duration
	pods    cache.Indexer

	mu       sync.Mutex
	handle   fwk.Handle // profiles share queue and waiting pods
	timers   map[string]*time.Timer
	complete map[string]bool // their pending pods were retried
}

func newGroups(factory informers.SharedInformerFactory, timeout time.Duration) (*groups, error) {
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(indexGroups); err != nil {
		return nil, fmt.Errorf("index pods by group: %w", err)
	}
	g := &groups{timeout: timeout, pods: informer.GetIndexer(), timers: map[string]*time.Timer{}, complete: map[string]bool{}}
	if _, err := informer.AddEventHandler(kube.Handler[*v1.Pod]{Set: g.podChanged,
		Replaced: func(_, pod *v1.Pod) { g.podChanged(pod) }, Gone: g.podChanged}); err != nil {
		return nil, fmt.Errorf("watch pods of groups: %w", err)
	}
	return g, nil
}

func (g *groups) setHandle(handle fwk.Handle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handle = handle
}

// of returns nil for a pod without a group.
func (g *groups) of(pod *v1.Pod) *group {
	key := groupOf(pod)
	if key == "" {
		return nil
	}
	objects, err := g.pods.ByIndex(groupIndex, key)
	if err != nil {
		return nil
	}
	pods := make([]*v1.Pod, 0, len(objects)+1)
	known := false
	for _, object := range objects {
		if member, ok := object.(*v1.Pod); ok {
			pods = append(pods, member)
			known = known || member.UID == pod.UID
		}
	}
	if !known {
		pods = append(pods, pod)
	}
	return newGroup(key, pods)
}

func (g *groups) exists(pod *v1.Pod) bool {
	object, there, err := g.pods.GetByKey(pod.Namespace + "/" + pod.Name)
	known, ok := object.(*v1.Pod)
	return err == nil && there && ok && known.UID == pod.UID
}

// podChanged retries rejected pods when the group is complete: kube-scheduler has no event for
// created pods. When some are bound, no pod waits any more: a group may exceed its minimum.
func (g *groups) podChanged(pod *v1.Pod) {
	key := groupOf(pod)
	if key == "" {
		return
	}
	now := g.of(pod)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle == nil {
		return
	}
	if now.started {
		g.allow(key)
	}
	complete := len(now.pods) >= now.minimum
	if complete && now.mustWait() && !g.complete[key] {
		activate(g.handle, now.pending...)
	}
	if complete && len(now.pending) > 0 {
		g.complete[key] = true
	} else {
		delete(g.complete, key)
	}
}

// checkComplete prevents that incomplete groups reserve GPUs.
func (g *groups) checkComplete(pod *v1.Pod) *fwk.Status {
	now := g.of(pod)
	if now == nil || !now.mustWait() || len(now.pods) >= now.minimum {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("group %s has %d of the %d pods that must be scheduled together (annotation %s)",
			now.key, len(now.pods), now.minimum, api.AnnotationGroupMin))
}

func (p *Plugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	return p.groups.permit(pod)
}

func (g *groups) permit(pod *v1.Pod) (*fwk.Status, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.of(pod)
	if now == nil || !now.mustWait() {
		return nil, 0
	}
	placed := 1 // pod itself
	g.eachWaiting(now.key, func(w fwk.WaitingPod) {
		if w.GetPod().UID != pod.UID {
			placed++
		}
	})
	if placed >= now.minimum {
		g.allow(now.key)
		return nil, 0
	}
	if g.timers[now.key] == nil {
		g.timers[now.key] = time.AfterFunc(g.timeout, func() { g.rejectGroup(pod, fmt.Sprintf("was not complete after %v", g.timeout)) })
		activate(g.handle, now.pending...) // skip their backoff
	}
	// The timer ends before kube-scheduler's timeouts of the pods.
	return fwk.NewStatus(fwk.Wait), g.timeout + time.Minute
}

func (g *groups) stopTimer(key string) {
	if timer := g.timers[key]; timer != nil {
		timer.Stop()
		delete(g.timers, key)
	}
}

// rejectGroup rejects the waiting pods, which releases their GPUs.
func (g *groups) rejectGroup(pod *v1.Pod, why string) {
	if key := groupOf(pod); key != "" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reject(key, fmt.Sprintf("group %s %s: none of its pods is scheduled", key, why))
	}
}

func (g *groups) reject(key, text string) {
	g.stopTimer(key)
	g.eachWaiting(key, func(w fwk.WaitingPod) { w.Reject(Name, text) })
}

func (g *groups) allow(key string) {
	g.stopTimer(key)
	g.eachWaiting(key, func(w fwk.WaitingPod) { w.Allow(Name) })
}

func (g *groups) eachWaiting(key string, do func(fwk.WaitingPod)) {
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if groupOf(w.GetPod()) == key {
			do(w)
		}
	})
}

// failed handles a pod that fits on no node. If it waits for GPUs of other pods, groups that come after its
// group release theirs; otherwise its own does. So of two groups with half of their GPUs each, one gets all.
func (g *groups) failed(pod *v1.Pod, waitsForGPUs bool) {
	now := g.of(pod)
	if now == nil || !now.mustWait() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	byGroup := map[string]*v1.Pod{}
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if key := groupOf(w.GetPod()); key != "" && key != now.key {
			byGroup[key] = w.GetPod()
		}
	})
	released := false
	for key, pod := range byGroup {
		if other := g.of(pod); waitsForGPUs && len(now.pods) >= now.minimum && other.mustWait() && now.before(other) {
			g.reject(key, fmt.Sprintf("group %s releases its GPUs for group %s, which comes first", key, now.key))
			released = true
		}
	}
	if !released {
		g.reject(now.key, fmt.Sprintf("group %s: pod %s fits on no node: none of its pods is scheduled", now.key, pod.Name))
	}
}

// groupOf returns namespace/name; empty for none. Pods without GPUs can be in a group.
func groupOf(pod *v1.Pod) string {
	name := pod.Labels[api.LabelGroup]
	if name == "" {
		return ""
	}
	return pod.Namespace + "/" + name
}

const groupIndex = "gpuslice.io/pod-group"

var indexGroups = cache.Indexers{groupIndex: func(object any) ([]string, error) {
	if pod, ok := object.(*v1.Pod); ok {
		if key := groupOf(pod); key != "" {
			return []string{key}, nil
		}
	}
	return nil, nil
}}

type group struct {
	key     string
	pods    []*v1.Pod
	pending []*v1.Pod // not bound
	minimum int
	// Some are bound: replacements of failed pods need not wait.
	started  bool
	priority int32     // highest
	created  time.Time // oldest
}

func (g *group) mustWait() bool { return g.minimum > 1 && !g.started }

// before compares priority, then age.
func (g *group) before(h *group) bool {
	return cmp.Or(cmp.Compare(h.priority, g.priority), g.created.Compare(h.created), cmp.Compare(g.key, h.key)) < 0
}

// newGroup ignores pods that ended.
func newGroup(key string, pods []*v1.Pod) *group {
	g := &group{key: key}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		g.pods = append(g.pods, pod)
		if pod.Spec.NodeName == "" {
			g.pending = append(g.pending, pod)
		} else {
			g.started = true
		}
		if n, err := strconv.Atoi(pod.Annotations[api.AnnotationGroupMin]); err == nil {
			g.minimum = max(g.minimum, n)
		}
		if p := pod.Spec.Priority; p != nil {
			g.priority = max(g.priority, *p)
		}
		if at := pod.CreationTimestamp.Time; g.created.IsZero() || at.Before(g.created) {
			g.created = at
		}
	}
	return g
}
