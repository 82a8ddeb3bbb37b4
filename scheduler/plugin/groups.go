package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// groups schedule the pods of a group together: each waits in Permit, with its GPUs reserved, until
// the group's minimum waits.
type groups struct {
	timeout  time.Duration
	pods     cache.Indexer
	minimums gang.Minimums
	// native: kube-scheduler itself schedules the groups of spec.schedulingGroup.
	native bool

	mu       sync.Mutex
	handle   fwk.Handle // profiles share queue and waiting pods
	timers   map[gang.Name]*time.Timer
	complete map[gang.Name]bool // their pending pods were retried
	// rejected are pods that kube-scheduler still lists as waiting: their cycles have not ended.
	rejected map[fwk.WaitingPod]bool
	anywhere map[gang.Name]bool // no pod fitted in the preferred domain
	late     map[gang.Name]bool // see retryLate; nil: it is not called
}

func newGroups(factory informers.SharedInformerFactory, timeout time.Duration, native bool) (*groups, error) {
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(gang.Indexers); err != nil {
		return nil, fmt.Errorf("index pods by group: %w", err)
	}
	g := &groups{timeout: timeout, pods: informer.GetIndexer(), native: native,
		timers: map[gang.Name]*time.Timer{}, complete: map[gang.Name]bool{}, anywhere: map[gang.Name]bool{}}
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

// name is false for a pod without a group that this plugin schedules.
func (g *groups) name(pod *v1.Pod) (gang.Name, bool) {
	name, ok := gang.Of(pod)
	return name, ok && !(g.native && name.API == gang.Kubernetes)
}

// of returns nil for a pod without a group.
func (g *groups) of(pod *v1.Pod) *gang.Group {
	name, ok := g.name(pod)
	if !ok {
		return nil
	}
	pods := gang.Pods(g.pods, name)
	if !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.UID == pod.UID }) {
		pods = append(pods, pod)
	}
	return gang.New(name, pods, g.minimums)
}

// named ignores pods that ended.
func (g *groups) named(name gang.Name) *gang.Group {
	return gang.New(name, gang.Pods(g.pods, name), g.minimums)
}

// retry is for pending pods that kube-scheduler has no event for, except one: see activate.
func (g *groups) retry(group *gang.Group, except types.UID) (all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle == nil {
		return false
	}
	return g.activate(group, except)
}

// retryLate retries the pods that activate left out. It is called at an interval, after which their cycles have ended.
func (g *groups) retryLate() {
	g.mu.Lock()
	late := g.late
	g.late = map[gang.Name]bool{}
	g.mu.Unlock()
	for name := range late {
		g.retry(g.named(name), "")
	}
}

func (g *groups) exists(pod *v1.Pod) bool {
	object, there, err := g.pods.GetByKey(pod.Namespace + "/" + pod.Name)
	known, ok := object.(*v1.Pod)
	return err == nil && there && ok && known.UID == pod.UID
}

// podChanged retries rejected pods when the group is complete: kube-scheduler has no event for
// created pods. When some are bound, no pod waits any more: a group may exceed its minimum.
func (g *groups) podChanged(pod *v1.Pod) {
	if now := g.of(pod); now != nil {
		g.update(now, false)
	}
}

// podGroupChanged retries rejected pods: kube-scheduler has no event for these objects.
func (g *groups) podGroupChanged(name gang.Name) {
	if pods := gang.Pods(g.pods, name); len(pods) > 0 && !(g.native && name.API == gang.Kubernetes) {
		g.update(gang.New(name, pods, g.minimums), true)
	}
}

func (g *groups) update(now *gang.Group, retry bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle == nil {
		return
	}
	if now.Started {
		g.allow(now.Name)
	}
	if retry || now.Complete() && now.MustWait() && !g.complete[now.Name] {
		g.activate(now, "")
	}
	if now.Complete() && len(now.Pending) > 0 {
		g.complete[now.Name] = true
	} else {
		delete(g.complete, now.Name)
	}
}

// checkComplete prevents that incomplete groups reserve GPUs.
func (g *groups) checkComplete(pod *v1.Pod) *fwk.Status {
	if now := g.of(pod); now != nil {
		if why := now.Incomplete(); why != "" {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
		}
	}
	return nil
}

func (p *Plugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	return p.groups.permit(pod)
}

func (g *groups) permit(pod *v1.Pod) (*fwk.Status, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.of(pod)
	if now == nil || !now.MustWait() {
		return nil, 0
	}
	if why := now.Incomplete(); why != "" { // since PreFilter
		return fwk.NewStatus(fwk.Unschedulable, why), 0
	}
	placed := 1 // pod itself
	g.eachWaiting(now.Name, func(w fwk.WaitingPod) {
		if w.GetPod().UID != pod.UID {
			placed++
		}
	})
	if placed >= now.Minimum {
		g.allow(now.Name)
		return nil, 0
	}
	timeout := g.timeout
	if now.Timeout > 0 {
		timeout = min(now.Timeout, maxGroupTimeout)
	}
	if g.timers[now.Name] == nil {
		g.timers[now.Name] = time.AfterFunc(timeout, func() { g.rejectGroup(pod, fmt.Sprintf("was not complete after %v", timeout)) })
		g.activate(now, pod.UID) // skip their backoff
	}
	// The timer ends before kube-scheduler's timeouts of the pods.
	return fwk.NewStatus(fwk.Wait), timeout + time.Minute
}

// activate retries pods of a group that wait in the queue, except one. Those that wait in Permit would be retried at the moment they
// are rejected: kube-scheduler 1.36 then loses a pod that it pops before it has marked the end of the pod's last cycle
// (AddUnschedulableIfNotPresent). If some were rejected just now, it reports false, and they are retried late.
func (g *groups) activate(group *gang.Group, except types.UID) (all bool) {
	all = true
	waiting := map[types.UID]bool{except: true}
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if name, ok := g.name(w.GetPod()); !ok || name != group.Name || g.rejected[w] && g.late == nil {
			return
		}
		if waiting[w.GetPod().UID] = true; g.rejected[w] {
			all, g.late[group.Name] = false, true
		}
	})
	activate(g.handle, slices.DeleteFunc(slices.Clone(group.Pending), func(p *v1.Pod) bool { return waiting[p.UID] })...)
	return all
}

func (g *groups) stopTimer(name gang.Name) {
	if timer := g.timers[name]; timer != nil {
		timer.Stop()
		delete(g.timers, name)
	}
}

// rejectGroup rejects the waiting pods, which releases their GPUs.
func (g *groups) rejectGroup(pod *v1.Pod, why string) {
	if name, ok := g.name(pod); ok {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reject(name, fmt.Sprintf("group %s %s: none of its pods is scheduled", name, why))
	}
}

// reject reports false if no pod waits any more: those that are listed are being bound.
func (g *groups) reject(name gang.Name, text string) (rejected bool) {
	g.stopTimer(name)
	listed := map[fwk.WaitingPod]bool{}
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		of, ok := g.name(w.GetPod())
		switch {
		case g.rejected[w]:
			listed[w] = true
		case ok && of == name && w.Reject(Name, text):
			listed[w], rejected = true, true
		}
	})
	g.rejected = listed
	return rejected
}

func (g *groups) allow(name gang.Name) {
	g.stopTimer(name)
	delete(g.anywhere, name)
	g.eachWaiting(name, func(w fwk.WaitingPod) { w.Allow(Name) })
}

func (g *groups) eachWaiting(name gang.Name, do func(fwk.WaitingPod)) {
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if of, ok := g.name(w.GetPod()); ok && of == name && !g.rejected[w] {
			do(w)
		}
	})
}

// failed handles a pod that fits on no node. If it waits for GPUs of other pods, groups that come after its
// group release theirs, and it reports true; otherwise its own does. So of two groups with half of their GPUs each, one gets
// all.
func (g *groups) failed(pod *v1.Pod, waitsForGPUs bool) (released bool) {
	now := g.of(pod)
	if now == nil || !now.MustWait() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	others := map[gang.Name]*v1.Pod{}
	g.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if name, ok := g.name(w.GetPod()); ok && name != now.Name && !g.rejected[w] {
			others[name] = w.GetPod()
		}
	})
	for name, pod := range others {
		if other := g.of(pod); waitsForGPUs && now.Complete() && other.MustWait() && now.Before(other) {
			if g.reject(name, fmt.Sprintf("group %s releases its GPUs for group %s, which comes first", name, now.Name)) {
				released = true
			}
		}
	}
	if !released {
		g.reject(now.Name, fmt.Sprintf("group %s: pod %s fits on no node: none of its pods is scheduled", now.Name, pod.Name))
	}
	return released
}
