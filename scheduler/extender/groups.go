package extender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// waitForGroup does not wait if pods of the group are bound: then the pod replaces one that failed.
func (s *Server) waitForGroup(ctx context.Context, pod *v1.Pod) error {
	now := s.Cluster.group(pod)
	if now == nil || !now.MustWait() {
		return nil
	}
	if why := now.Incomplete(); why != "" {
		return errors.New(why)
	}
	timeout := s.GroupTimeout
	if now.Timeout > 0 {
		timeout = min(timeout, now.Timeout)
	}
	return s.groups.wait(ctx, timeout, now, pod)
}

// groupChanged makes kube-scheduler retry the pods of a group that has become complete; with retry also those of a group
// that was.
func (s *Server) groupChanged(now *gang.Group, retry bool) {
	first := s.groups.becomesComplete(now)
	if now.MustWait() && now.Complete() && (first || retry) {
		for _, pod := range now.Pending {
			s.requeuer.enqueue(pod)
		}
	}
}

// podChanged is for each change of a pod: several that are created together may all be known at the first of them.
func (s *Server) podChanged(pod *v1.Pod) {
	if name, ok := gang.Of(pod); ok {
		s.groupChanged(gang.New(name, gang.Pods(s.Cluster.index, name), s.Cluster.minimums), false)
	}
}

func (s *Server) podGroupChanged(name gang.Name) {
	if pods := gang.Pods(s.Cluster.index, name); len(pods) > 0 {
		s.groupChanged(gang.New(name, pods, s.Cluster.minimums), true)
	}
}

// groupFailed handles a pod that fits on no node, as the plugin does. If it waits for GPUs of other pods, groups that
// come after its group release theirs; otherwise its own does.
func (s *Server) groupFailed(pod *v1.Pod, waitsForGPUs bool) {
	now := s.Cluster.group(pod)
	if now == nil || !now.MustWait() {
		return
	}
	released := false
	for name, pod := range s.groups.waiting() {
		if name == now.Name || !waitsForGPUs || !now.Complete() {
			continue
		}
		if other := s.Cluster.group(pod); other.MustWait() && now.Before(other) {
			s.groups.reject(name, fmt.Errorf("group %s releases its GPUs for group %s, which comes first", name, now.Name))
			released = true
		}
	}
	if !released {
		s.groups.reject(now.Name, fmt.Errorf("group %s: pod %s fits on no node: none of its pods is scheduled", now.Name, pod.Name))
	}
}

// topology returns labels of which the nodes of a group have one value, and which of them is required, if any.
func (s *Server) topology(group *gang.Group) (labels []string, required string) {
	if required := group.Topology(); required != "" {
		return []string{required}, required
	}
	return s.GroupTopology, ""
}

// domain limits nodes that fit to those for the pod's group, or returns why none is left. kube-scheduler's own plugins
// have accepted all of them.
func (s *Server) domain(object *v1.Pod, fits []fitting) (_ []fitting, why string) {
	now := s.Cluster.group(object)
	if now == nil || len(fits) == 0 {
		return fits, ""
	}
	accepted := map[string]bool{}
	for _, f := range fits {
		accepted[f.name] = true
	}
	var pods []*scheduler.Pod
	for _, p := range now.Pods {
		pods = append(pods, convert.Pod(p))
	}
	labels, required := s.topology(now)
	for _, label := range labels {
		d := s.Engine.Domain(s.Engine.Snapshot(), label, pods, func(node string) bool { return accepted[node] })
		if d == nil {
			continue
		}
		return slices.DeleteFunc(slices.Clone(fits), func(f fitting) bool { return !slices.Contains(d.Nodes, f.name) }), ""
	}
	if required != "" {
		return nil, fmt.Sprintf("group %s: no value of the node label %s has nodes on which all of its %d pods fit", now.Name, required, len(pods))
	}
	return fits, ""
}

// DefaultGroupTimeout is less than kube-scheduler's httpTimeout (30 s in the shipped
// configuration).
const DefaultGroupTimeout = 25 * time.Second

// groups have the pods that wait in bind, and the groups that are complete.
type groups struct {
	mu       sync.Mutex
	byName   map[gang.Name]*group
	complete map[gang.Name]bool // their pending pods were retried
}

type group struct {
	pod  *v1.Pod // one of them
	pods map[types.UID]bool
	done chan struct{}
	err  error // after done
}

func newGroups() *groups {
	return &groups{byName: map[gang.Name]*group{}, complete: map[gang.Name]bool{}}
}

// becomesComplete reports whether the group has pending pods and enough pods, and had not when it was asked before.
func (g *groups) becomesComplete(now *gang.Group) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.complete[now.Name]
	if now.Complete() && len(now.Pending) > 0 {
		g.complete[now.Name] = true
		return !before
	}
	delete(g.complete, now.Name)
	return false
}

// wait returns when the group's minimum waits; after the timeout the pod no longer counts.
func (g *groups) wait(ctx context.Context, timeout time.Duration, now *gang.Group, pod *v1.Pod) error {
	g.mu.Lock()
	this := g.byName[now.Name]
	if this == nil {
		this = &group{pod: pod, pods: map[types.UID]bool{}, done: make(chan struct{})}
		g.byName[now.Name] = this
	}
	this.pods[pod.UID] = true
	if len(this.pods) >= now.Minimum {
		// Later pods start a new group, and do not wait once one of these is bound.
		g.end(now.Name, nil)
	}
	g.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-this.done:
		return this.err
	case <-ctx.Done():
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-this.done:
		return this.err
	default:
	}
	count := len(this.pods)
	delete(this.pods, pod.UID)
	if len(this.pods) == 0 {
		delete(g.byName, now.Name)
	}
	return fmt.Errorf("group %s has %d of the %d pods that it needs: none is bound", now.Name, count, now.Minimum)
}

// end lets the waiting pods be bound, or refuses them. The caller holds mu.
func (g *groups) end(name gang.Name, err error) {
	if this := g.byName[name]; this != nil {
		this.err = err
		close(this.done)
		delete(g.byName, name)
	}
}

func (g *groups) reject(name gang.Name, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(name, err)
}

// waiting returns one pod of each group.
func (g *groups) waiting() map[gang.Name]*v1.Pod {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[gang.Name]*v1.Pod, len(g.byName))
	for name, this := range g.byName {
		all[name] = this.pod
	}
	return all
}
