package kube

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Prefers reports whether the pod's author prefers some nodes to others, apart from GPUs.
func Prefers(p *v1.Pod) bool {
	if slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == v1.ScheduleAnyway
	}) {
		return true
	}
	a := p.Spec.Affinity
	return a != nil && (a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAffinity != nil && len(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAntiAffinity != nil && len(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0)
}

// OthersJudge reports whether the pod has rules or preferences that only kube-scheduler's plugins can judge.
func OthersJudge(p *v1.Pod) bool {
	a := p.Spec.Affinity
	return len(p.Spec.TopologySpreadConstraints) > 0 || len(p.Spec.ResourceClaims) > 0 ||
		a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) ||
		slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}
