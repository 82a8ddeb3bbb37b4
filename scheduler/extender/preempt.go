package extender

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// preempt adds victims for GPUs to those that kube-scheduler found. Pods that a
// PodDisruptionBudget protects are the last choice.
func (s *Server) preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) (*extenderv1.ExtenderPreemptionResult, error) {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	pod, r, err := s.request(args.Pod)
	if err != nil {
		return result, err
	}
	if r == nil {
		result.NodeNameToMetaVictims = metaVictims(args)
		return result, nil
	}
	if now := s.Cluster.group(args.Pod); now != nil && now.MustWait() {
		return result, nil // room for one of its pods is none for the group
	}
	if s.tries.nominated(pod.UID, "") {
		return result, nil // it fits elsewhere
	}
	s.evicting.remove(args.Pod.UID) // kube-scheduler evicts
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	lower, nominated, budgets := s.Cluster.lower(pod.Priority), s.nominated(pod), s.Cluster.budgets()
	for node, victims := range metaVictims(args) {
		overlay := s.withPods(evaluation.Snapshot().Overlay(), node, nominated[node])
		chosen := make([]string, len(victims.Pods))
		for i, v := range victims.Pods {
			chosen[i] = v.UID
			overlay = overlay.Without(node, v.UID)
		}
		protected, rest := kube.ByBudget(lower[node], chosen, budgets)
		more, ok := evaluation.Victims(overlay, node, append(protected, rest...))
		if !ok {
			continue
		}
		all := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations, Pods: victims.Pods}
		for _, uid := range more {
			all.Pods = append(all.Pods, &extenderv1.MetaPod{UID: uid})
			if slices.Contains(protected, uid) {
				all.NumPDBViolations++
			}
		}
		result.NodeNameToMetaVictims[node] = all
	}
	return result, nil
}

// nominated returns, by node, the nominated pods of at least the pod's priority: victims were
// evicted for them.
func (s *Server) nominated(pod *scheduler.Pod) map[string][]*v1.Pod {
	all := s.Cluster.nominated()
	s.evicting.nominate(all)
	for node, pods := range all {
		all[node] = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return string(p.UID) == pod.UID || priorityOf(p) < pod.Priority })
	}
	return all
}

func (s *Server) withPods(o *engine.Overlay, node string, pods []*v1.Pod) *engine.Overlay {
	for _, p := range pods {
		if o.Has(node, string(p.UID)) { // filter nominated it, and reserved GPUs for it
			continue
		}
		other := convert.Pod(p)
		if r, err := s.Engine.Request(other); err == nil {
			o = s.Engine.With(o, node, other, r)
		}
	}
	return o
}

// metaVictims ignores null entries.
func metaVictims(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.MetaVictims {
	all := map[string]*extenderv1.MetaVictims{}
	for node, victims := range args.NodeNameToMetaVictims {
		meta := *cmp.Or(victims, &extenderv1.MetaVictims{})
		meta.Pods = slices.DeleteFunc(meta.Pods, func(p *extenderv1.MetaPod) bool { return p == nil })
		all[node] = &meta
	}
	if args.NodeNameToMetaVictims != nil {
		return all
	}
	for node, victims := range args.NodeNameToVictims {
		victims = cmp.Or(victims, &extenderv1.Victims{})
		all[node] = &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations}
		for _, p := range victims.Pods {
			if p != nil {
				all[node].Pods = append(all[node].Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
		}
	}
	return all
}
