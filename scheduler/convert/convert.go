// Package convert converts Pods and Nodes of Kubernetes into the scheduler's model. It needs no client.
package convert

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// Node converts a node. The result shares n's maps: change neither.
func Node(n *v1.Node) *scheduler.Node {
	return &scheduler.Node{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}
}

// Pod converts a pod. The result shares p's maps: change neither.
func Pod(p *v1.Pod) *scheduler.Pod {
	pod := &scheduler.Pod{
		UID:         string(p.UID),
		Namespace:   p.Namespace,
		Name:        p.Name,
		Node:        p.Spec.NodeName,
		Created:     p.CreationTimestamp.Time,
		Ended:       Ended(p),
		Class:       ClassOf(p),
		Labels:      p.Labels,
		Annotations: p.Annotations,
		Containers:  make([]scheduler.Container, 0, len(p.Spec.InitContainers)+len(p.Spec.Containers)),
	}
	if p.Spec.Priority != nil {
		pod.Priority = *p.Spec.Priority
	}
	if group, ok := gang.Of(p); ok {
		pod.Group = group.String()
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		kind := scheduler.Init
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			kind = scheduler.Sidecar
		}
		pod.Containers = append(pod.Containers, container(c, kind))
	}
	for i := range p.Spec.Containers {
		pod.Containers = append(pod.Containers, container(&p.Spec.Containers[i], scheduler.App))
	}
	return pod
}

// Ended is false for a terminating pod: its containers run.
func Ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func container(c *v1.Container, kind scheduler.Kind) scheduler.Container {
	return scheduler.Container{Name: c.Name, Kind: kind, Resources: extended(c.Resources)}
}

// extended returns the resources with a domain in their names. If requests and limits are set, they
// are equal.
func extended(r v1.ResourceRequirements) map[string]scheduler.Amount {
	var amounts map[string]scheduler.Amount
	for _, list := range []v1.ResourceList{r.Requests, r.Limits} {
		for name, quantity := range list {
			if !IsExtended(name) {
				continue
			}
			if amounts == nil {
				amounts = make(map[string]scheduler.Amount, len(list))
			}
			amounts[string(name)] = Amount(quantity)
		}
	}
	return amounts
}

// IsExtended reports whether the name has a domain.
func IsExtended(name v1.ResourceName) bool { return strings.Contains(string(name), "/") }

// Amount accepts integers such as "1k" and "1000m".
func Amount(q resource.Quantity) scheduler.Amount {
	// Value rounds up and can overflow.
	value := q.Value()
	switch {
	case resource.NewQuantity(value, resource.DecimalSI).Cmp(q) == 0:
		return scheduler.Amount{Value: value}
	case q.CmpInt64(math.MaxInt64) > 0 || q.CmpInt64(math.MinInt64) < 0:
		return scheduler.Amount{Invalid: fmt.Sprintf("%s does not fit in 64 bits", q.String())}
	default:
		return scheduler.Amount{Invalid: fmt.Sprintf("%s is not a whole number", q.String())}
	}
}

// ClassOf is as Kubernetes' evaluator of quotas has it. The API server sets the QoS class of each pod.
func ClassOf(p *v1.Pod) scheduler.Class {
	deadline := p.Spec.ActiveDeadlineSeconds
	return scheduler.Class{PriorityClass: p.Spec.PriorityClassName, Terminating: deadline != nil && *deadline >= 0,
		BestEffort: p.Status.QOSClass == v1.PodQOSBestEffort, CrossNamespace: CrossNamespace(p.Spec.Affinity) != nil}
}

// CrossNamespace returns nil unless the affinity names namespaces.
func CrossNamespace(a *v1.Affinity) *v1.Affinity {
	var terms []v1.PodAffinityTerm
	add := func(required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for i := range preferred {
			terms = append(terms, preferred[i].PodAffinityTerm)
		}
	}
	if a != nil && a.PodAffinity != nil {
		add(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a != nil && a.PodAntiAffinity != nil {
		add(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if slices.ContainsFunc(terms, func(t v1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }) {
		return a
	}
	return nil
}
