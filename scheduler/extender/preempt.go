package extender

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// preempt says on which nodes evicting whom makes room for the pod, GPUs included. Pods that
// a budget protects are spared before all others.
func (s *Server) preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) (*extenderv1.ExtenderPreemptionResult, error) {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	pod, r, err := s.wanted(args.Pod)
	if err != nil {
		return result, err // nobody is evicted for a pod that fits nowhere
	}
	if r == nil {
		for node, victims := range metaVictims(args) {
			result.NodeNameToMetaVictims[node] = victims
		}
		return result, nil
	}
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	lower, ahead, budgets := s.Cluster.Lower(pod.Priority), s.ahead(pod), s.Cluster.Budgets()
	for node, victims := range metaVictims(args) {
		overlay := s.nominate(evaluation.Snapshot().Overlay(), node, ahead[node])
		// Who is evicted for other reasons is gone whatever we say.
		going := make([]string, len(victims.Pods))
		for i, v := range victims.Pods {
			going[i] = v.UID
			overlay = overlay.Without(node, v.UID)
		}
		protected, rest := byBudget(lower[node], going, budgets)
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

// byBudget are the pods, but for those that go anyway, in their order: first those whose budget allows
// no eviction more, then the others. It counts as kube-scheduler does.
func byBudget(pods []*v1.Pod, going []string, budgets []*policyv1.PodDisruptionBudget) (protected, rest []string) {
	if len(budgets) == 0 {
		for _, p := range pods {
			rest = append(rest, string(p.UID))
		}
		return nil, rest
	}
	allowed := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			selector = labels.Nothing()
		}
		selectors[i] = selector
	}
	evict := func(p *v1.Pod) (violates bool) {
		for i, b := range budgets {
			_, disrupted := b.Status.DisruptedPods[p.Name] // counted by the API server already
			if b.Namespace != p.Namespace || disrupted || len(p.Labels) == 0 || selectors[i].Empty() || !selectors[i].Matches(labels.Set(p.Labels)) {
				continue
			}
			allowed[i]--
			violates = violates || allowed[i] < 0
		}
		return violates
	}
	goes := func(p *v1.Pod) bool { return slices.Contains(going, string(p.UID)) }
	for _, p := range pods {
		if goes(p) {
			evict(p)
		}
	}
	for _, p := range pods {
		switch {
		case goes(p):
		case evict(p):
			protected = append(protected, string(p.UID))
		default:
			rest = append(rest, string(p.UID))
		}
	}
	return protected, rest
}

// ahead are the pods that nodes were cleared for and that don't come after the pod: it must not take
// the room that others were evicted for.
func (s *Server) ahead(pod *scheduler.Pod) map[string][]*v1.Pod {
	all := s.Cluster.Nominated()
	for node, pods := range all {
		all[node] = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return string(p.UID) == pod.UID || priorityOf(p) < pod.Priority })
	}
	return all
}

// nominate is the overlay with those pods on the node.
func (s *Server) nominate(o *engine.Overlay, node string, pods []*v1.Pod) *engine.Overlay {
	for _, p := range pods {
		other := kube.Pod(p)
		if r, err := s.Engine.Request(other); err == nil {
			o = s.Engine.With(o, node, other, r)
		}
	}
	return o
}

// metaVictims are the call's victims by UID, in whichever form they were sent. A null among them is nobody.
func metaVictims(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.MetaVictims {
	if args.NodeNameToMetaVictims != nil {
		all := make(map[string]*extenderv1.MetaVictims, len(args.NodeNameToMetaVictims))
		for node, victims := range args.NodeNameToMetaVictims {
			meta := *cmp.Or(victims, &extenderv1.MetaVictims{})
			meta.Pods = slices.DeleteFunc(meta.Pods, func(p *extenderv1.MetaPod) bool { return p == nil })
			all[node] = &meta
		}
		return all
	}
	all := make(map[string]*extenderv1.MetaVictims, len(args.NodeNameToVictims))
	for node, victims := range args.NodeNameToVictims {
		meta := &extenderv1.MetaVictims{}
		if victims != nil {
			meta.NumPDBViolations = victims.NumPDBViolations
			for _, p := range victims.Pods {
				if p == nil {
					continue
				}
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
		}
		all[node] = meta
	}
	return all
}
