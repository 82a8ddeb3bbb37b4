package kube

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// ByBudget finds pods with a budget that allows no further eviction. It counts as kube-scheduler
// does.
func ByBudget(pods []*v1.Pod, chosen []string, budgets []*policyv1.PodDisruptionBudget) (protected, rest []string) {
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
			_, disrupted := b.Status.DisruptedPods[p.Name] // already counted by the API server
			if b.Namespace != p.Namespace || disrupted || len(p.Labels) == 0 || selectors[i].Empty() || !selectors[i].Matches(labels.Set(p.Labels)) {
				continue
			}
			allowed[i]--
			violates = violates || allowed[i] < 0
		}
		return violates
	}
	isChosen := func(p *v1.Pod) bool { return slices.Contains(chosen, string(p.UID)) }
	for _, p := range pods {
		if isChosen(p) {
			evict(p)
		}
	}
	for _, p := range pods {
		switch {
		case isChosen(p):
		case evict(p):
			protected = append(protected, string(p.UID))
		default:
			rest = append(rest, string(p.UID))
		}
	}
	return protected, rest
}

// Evictable are the UIDs of the bound pods that no budget protects.
func Evictable(pods []*v1.Pod, budgets []*policyv1.PodDisruptionBudget) map[string]bool {
	running := slices.DeleteFunc(slices.Clone(pods), func(p *v1.Pod) bool { return p.Spec.NodeName == "" || p.DeletionTimestamp != nil })
	slices.SortFunc(running, func(a, b *v1.Pod) int { // the least important ones use what budgets allow
		return cmp.Or(cmp.Compare(ptr.Deref(a.Spec.Priority, 0), ptr.Deref(b.Spec.Priority, 0)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	_, rest := ByBudget(running, nil, budgets)
	free := make(map[string]bool, len(rest))
	for _, uid := range rest {
		free[uid] = true
	}
	return free
}
