package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// groups place the pods of a group together or not at all: each that has a node waits, with
// its GPUs held, until so many do as the group needs. What is decided of a group is
// decided under one lock.
type groups struct {
	timeout time.Duration
	members cache.Indexer

	mu      sync.Mutex
	handle  fwk.Handle // of any profile: they have their queue and waiting pods in common
	forming map[string]*time.Timer
	full    map[string]bool // as many pods as are needed are there: those before were tried again
}

func newGroups(factory informers.SharedInformerFactory, timeout time.Duration) (*groups, error) {
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(indexGroups); err != nil {
		return nil, fmt.Errorf("index pods by their group: %w", err)
	}
	g := &groups{timeout: timeout, members: informer.GetIndexer(), forming: map[string]*time.Timer{}, full: map[string]bool{}}
	if _, err := informer.AddEventHandler(kube.Handler[*v1.Pod]{Set: g.came, Replaced: func(_, pod *v1.Pod) { g.came(pod) }, Gone: g.came}); err != nil {
		return nil, fmt.Errorf("follow the pods of groups: %w", err)
	}
	return g, nil
}

func (g *groups) join(p *Plugin) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handle = p.handle
}

// of is the pod's group as it is now; nil: it is in none.
func (g *groups) of(pod *v1.Pod) *group {
	key := groupOf(pod)
	if key == "" {
		return nil
	}
	objects, err := g.members.ByIndex(groupIndex, key)
	if err != nil {
		return nil // of an index that there is: never
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
	return gathered(key, pods)
}

// exists says whether the pod is there, whatever kube-scheduler has been told of it.
func (g *groups) exists(pod *v1.Pod) bool {
	object, there, err := g.members.GetByKey(pod.Namespace + "/" + pod.Name)
	known, ok := object.(*v1.Pod)
	return err == nil && there && ok && known.UID == pod.UID
}

// came is the event that a pod of a group has come, changed or gone. Once all are there that
// are needed, those that were refused for that reason are tried again: kube-scheduler
// has no event for a pod that was made. Once some are bound, nobody waits any more: a group
// may have more pods than it needs.
func (g *groups) came(pod *v1.Pod) {
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
	if now.admitted {
		g.allow(key) // also one that began to wait just when the first of the group was bound
	}
	full := len(now.pods) >= now.least
	if full && now.together() && !g.full[key] {
		g.activate(now.waiting)
	}
	if full && len(now.waiting) > 0 {
		g.full[key] = true
	} else {
		delete(g.full, key)
	}
}

func (g *groups) activate(pods []*v1.Pod) {
	all := make(map[string]*v1.Pod, len(pods))
	for _, pod := range pods {
		all[pod.Namespace+"/"+pod.Name] = pod
	}
	g.handle.Activate(klog.Background(), all)
}

// gather is PreFilter's: no GPUs are held for a group of which pods are still to be made.
func (g *groups) gather(pod *v1.Pod) *fwk.Status {
	now := g.of(pod)
	if now == nil || !now.together() || len(now.pods) >= now.least {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("group %s has %d of the %d pods that have to be placed together (annotation %s)",
		now.key, len(now.pods), now.least, request.AnnotationGroupMin))
}

// Permit implements fwk.PermitPlugin.
func (p *Plugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	return p.groups.permit(pod)
}

func (g *groups) permit(pod *v1.Pod) (*fwk.Status, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.of(pod)
	if now == nil || !now.together() {
		return nil, 0
	}
	placed := 1 // pod itself
	g.each(now.key, func(w fwk.WaitingPod) {
		if w.GetPod().UID != pod.UID {
			placed++
		}
	})
	if placed >= now.least {
		g.allow(now.key)
		return nil, 0
	}
	if g.forming[now.key] == nil {
		g.forming[now.key] = time.AfterFunc(g.timeout, func() { g.scatter(pod, fmt.Sprintf("was not complete after %v", g.timeout)) })
		g.activate(now.waiting) // those that wait out a backoff, with the others' GPUs held
	}
	// The group has one end for all of them. Kube-scheduler's, a pod at a time, comes later.
	return fwk.NewStatus(fwk.Wait), g.timeout + time.Minute
}

func (g *groups) end(key string) {
	if timer := g.forming[key]; timer != nil {
		timer.Stop()
		delete(g.forming, key)
	}
}

// scatter gives back what the pods of pod's group hold that wait.
func (g *groups) scatter(pod *v1.Pod, why string) {
	if key := groupOf(pod); key != "" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reject(key, fmt.Sprintf("group %s %s: none of its pods is placed", key, why))
	}
}

func (g *groups) reject(key, text string) {
	g.end(key)
	g.each(key, func(w fwk.WaitingPod) { w.Reject(Name, text) })
}

// allow lets all pods of the group go that wait.
func (g *groups) allow(key string) {
	g.end(key)
	g.each(key, func(w fwk.WaitingPod) { w.Allow(Name) })
}

// each goes through the pods of the group that wait.
func (g *groups) each(key string, do func(fwk.WaitingPod)) {
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if groupOf(w.GetPod()) == key {
			do(w)
		}
	})
}

// failed is PostFilter's: a pod of a group has no place. Where it is for GPUs that others have
// (shared), and groups that should come after have GPUs held, they give them back, and the pod is tried again
// when they have; else its own group does. So of two groups that have half of their GPUs each one gets all,
// and one that is not there yet, or that other plugins refuse, takes nothing from others.
func (g *groups) failed(pod *v1.Pod, shared bool) {
	now := g.of(pod)
	if now == nil || !now.together() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := map[string]*v1.Pod{} // of each group that has GPUs held
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if key := groupOf(w.GetPod()); key != "" && key != now.key {
			one[key] = w.GetPod()
		}
	})
	later := 0
	for key, pod := range one {
		if other := g.of(pod); shared && len(now.pods) >= now.least && other.together() && now.before(other) {
			g.reject(key, fmt.Sprintf("group %s makes room for group %s, which goes before it", key, now.key))
			later++
		}
	}
	if later == 0 {
		g.reject(now.key, fmt.Sprintf("group %s: no room for pod %s: none of its pods is placed", now.key, pod.Name))
	}
}
