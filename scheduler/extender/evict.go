package extender

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/engine"
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

// add keeps the time of the first rejection.
func (e *evicting) add(pod *v1.Pod, failed extenderv1.FailedNodesMap, now time.Time) {
	if len(failed) == 0 || !kube.MayPreempt(pod) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old, ok := e.rejected[pod.UID]; ok {
		now = old.at
	}
	e.rejected[pod.UID] = rejected{pod, slices.Sorted(maps.Keys(failed)), now}
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

// evictFor does nothing for groups: room for one pod is none for its group.
func (s *Server) evictFor(ctx context.Context, r rejected) {
	pod, err := s.Cluster.pod(ctx, r.pod.Namespace, r.pod.Name, r.pod.UID)
	if err != nil || pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" || !kube.MayPreempt(pod) ||
		s.Cluster.group(pod) != nil || s.Engine.AllocatedNode(string(pod.UID)) != "" || s.evicting.Waits(pod.UID) {
		return
	}
	// Not by r.pod: a caller could give it any priority.
	node, victims := s.victims(pod, r.nodes)
	if len(victims) == 0 || s.evicting.Evict(ctx, pod, victims) == 0 {
		return
	}
	s.evicting.mu.Lock()
	defer s.evicting.mu.Unlock()
	s.evicting.nominated[pod.UID] = nomination{pod, node, s.Clock()}
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
	all, _ := s.Cluster.pods.List(labels.Everything())
	free := kube.Evictable(all, budgets)
	return s.Engine.Reclaim(evaluation.Snapshot(), pod, r, func(v engine.Victim) bool { return free[v.UID] && !s.evicting.Leaving(v.UID) })
}
