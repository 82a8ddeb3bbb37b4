package extender

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

const (
	evictInterval = time.Second
	// evictDelay is time for kube-scheduler to preempt by its own count: it then nominates a node, or calls /preempt.
	evictDelay = 2 * time.Second
	// nominationTime is how long GPUs are kept for a pod for which others were evicted.
	nominationTime = 5 * time.Minute
)

// evicting has rejected pods for which the extender itself evicts others, because kube-scheduler sees no reason to:
// memory, cores and quotas are not in its count.
type evicting struct {
	*kube.Evictor

	mu        sync.Mutex
	rejected  map[types.UID]rejected
	nominated map[types.UID]nomination
}

type rejected struct {
	pod   *v1.Pod
	nodes []string // on which evictions can help
	at    time.Time
}

type nomination struct {
	pod  *v1.Pod
	node string
	at   time.Time
}

func newEvicting(e *kube.Evictor) *evicting {
	return &evicting{Evictor: e, rejected: map[types.UID]rejected{}, nominated: map[types.UID]nomination{}}
}

// add keeps the time of the first rejection, and the nodes of all.
func (e *evicting) add(pod *v1.Pod, nodes iter.Seq[string], now time.Time) {
	all := slices.Collect(nodes)
	if len(all) == 0 || !kube.MayPreempt(pod) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old, ok := e.rejected[pod.UID]; ok {
		all, now = append(all, old.nodes...), old.at
	}
	slices.Sort(all)
	e.rejected[pod.UID] = rejected{pod, slices.Compact(all), now}
}

func (e *evicting) remove(pod types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.rejected, pod)
	delete(e.nominated, pod)
}

// waits ends old nominations, and reports whether pods were rejected.
func (e *evicting) waits(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.nominated, func(_ types.UID, n nomination) bool { return now.Sub(n.at) > nominationTime })
	return len(e.rejected) > 0
}

// due removes and returns the pods that have waited for kube-scheduler's own preemption.
func (e *evicting) due(now time.Time) (pods []rejected) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, r := range e.rejected {
		if now.Sub(r.at) >= evictDelay {
			pods = append(pods, r)
			delete(e.rejected, uid)
		}
	}
	slices.SortFunc(pods, func(a, b rejected) int { // the most important first
		return cmp.Or(cmp.Compare(priorityOf(b.pod), priorityOf(a.pod)), a.at.Compare(b.at), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return pods
}

// nominate adds the pods for which others were evicted, by node.
func (e *evicting) nominate(all map[string][]*v1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.nominated {
		all[n.node] = append(all[n.node], n.pod)
	}
}

func (s *Server) evictAll(ctx context.Context) {
	for _, r := range s.evicting.due(s.Clock()) {
		if s.Ready() == nil && ctx.Err() == nil {
			s.evictFor(ctx, r)
		}
	}
}

func (s *Server) evictFor(ctx context.Context, r rejected) {
	pod, err := s.Cluster.pod(ctx, r.pod.Namespace, r.pod.Name, r.pod.UID)
	if err != nil || pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" || !kube.MayPreempt(pod) ||
		s.Engine.AllocatedNode(string(pod.UID)) != "" || s.evicting.Waits(pod.UID) {
		return
	}
	if now := s.Cluster.group(pod); now != nil && now.MustWait() {
		s.evictTogether(ctx, now, r.nodes)
		return
	}
	// Not by r.pod: a caller could give it any priority.
	node, victims := s.victims(pod, r.nodes)
	if len(victims) == 0 || s.evicting.Evict(ctx, pod, victims) == 0 {
		return
	}
	s.evicting.keep(pod, node, s.Clock())
}

func (e *evicting) keep(pod *v1.Pod, node string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nominated[pod.UID] = nomination{pod, node, now}
}

// evictTogether evicts pods of lower priority if then all pods of the group that are needed fit on these nodes, and none
// otherwise. The nodes' CPU and memory are not known here: kube-scheduler accepted them for one pod.
func (s *Server) evictTogether(ctx context.Context, now *gang.Group, nodes []string) {
	objects := now.Needed()
	if !now.Complete() || now.Topology() != "" || s.evicting.Waits(objects[0].UID) ||
		slices.ContainsFunc(objects, func(p *v1.Pod) bool { return !kube.MayPreempt(p) || p.Status.NominatedNodeName != "" }) {
		return
	}
	pods := make([]*scheduler.Pod, len(objects))
	for i, object := range objects {
		pod, _, err := s.request(object)
		if err != nil {
			return
		}
		pods[i] = pod
	}
	room := s.Engine.RoomForGroup(s.Engine.Snapshot(), pods, func(_, node string) bool { return slices.Contains(nodes, node) }, s.evictable())
	if room == nil || len(room.Victims) == 0 || !s.evicting.EvictTogether(ctx, objects[0], room.Victims) {
		return
	}
	for _, object := range objects {
		if node := room.Nodes[string(object.UID)]; node != "" {
			s.evicting.keep(object, node, s.Clock())
		}
	}
}

// evictable excludes pods that a budget protects, and pods that were evicted.
func (s *Server) evictable() func(engine.Victim) bool {
	all, _ := s.Cluster.pods.List(labels.Everything()) // listers of caches return no errors
	free := kube.Evictable(all, s.Cluster.budgets())
	return func(v engine.Victim) bool { return free[v.UID] && !s.evicting.Leaving(v.UID) }
}

// victims are on one node of those, or, where a quota is used up, anywhere.
func (s *Server) victims(object *v1.Pod, nodes []string) (best string, victims []engine.Victim) {
	pod, r, err := s.request(object)
	if err != nil || r == nil {
		return "", nil
	}
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	lower, nominated, budgets := s.Cluster.lower(pod.Priority), s.nominated(pod), s.Cluster.budgets()
	highest := int32(0)
	for _, node := range nodes {
		byUID := map[string]*v1.Pod{}
		candidates := slices.DeleteFunc(slices.Clone(lower[node]), func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
		for _, p := range candidates {
			byUID[string(p.UID)] = p
		}
		_, free := kube.ByBudget(candidates, nil, budgets)
		uids, ok := evaluation.Victims(s.withPods(evaluation.Snapshot().Overlay(), node, nominated[node]), node, free)
		if !ok || len(uids) == 0 {
			continue
		}
		var these []engine.Victim
		top := priorityOf(byUID[uids[0]])
		for _, uid := range uids {
			p := byUID[uid]
			top = max(top, priorityOf(p))
			these = append(these, engine.Victim{UID: uid, Namespace: p.Namespace, Name: p.Name, Node: node})
		}
		if best == "" || top < highest || top == highest && len(these) < len(victims) {
			best, highest, victims = node, top, these
		}
	}
	if best != "" {
		return best, victims
	}
	return s.Engine.Reclaim(evaluation.Snapshot(), pod, r, s.evictable())
}
