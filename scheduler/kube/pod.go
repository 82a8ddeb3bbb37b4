// Package kube translates between Kubernetes and the scheduler's model: objects to
// scheduler.Pod and scheduler.Node, and the API server's events into the engine.
//
// The doors (plugin, extender, webhook) use it; it may import the scheduler's other
// rooms and client-go, and decides nothing about GPUs.
package kube

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Pod is what the scheduler has to know of a pod. It shares p's maps: neither is to be changed.
func Pod(p *v1.Pod) *scheduler.Pod {
	pod := &scheduler.Pod{
		UID:         string(p.UID),
		Namespace:   p.Namespace,
		Name:        p.Name,
		Node:        p.Spec.NodeName,
		Created:     p.CreationTimestamp.Time,
		Ended:       ended(p),
		Labels:      p.Labels,
		Annotations: p.Annotations,
		Containers:  make([]scheduler.Container, 0, len(p.Spec.InitContainers)+len(p.Spec.Containers)),
	}
	if p.Spec.Priority != nil {
		pod.Priority = *p.Spec.Priority
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

// ended is what kube-scheduler and the kubelet go by: one that is only being deleted
// still runs.
func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func container(c *v1.Container, kind scheduler.Kind) scheduler.Container {
	return scheduler.Container{Name: c.Name, Kind: kind, Resources: extended(c.Resources)}
}

// extended are the resources with a domain in their names: Kubernetes' own have none,
// and are none of ours.
func extended(r v1.ResourceRequirements) map[string]scheduler.Amount {
	var amounts map[string]scheduler.Amount
	// The API server wants both to be equal where both are set.
	for _, list := range []v1.ResourceList{r.Requests, r.Limits} {
		for name, quantity := range list {
			if !isExtended(name) {
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

func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }

func isExtended(name v1.ResourceName) bool { return strings.Contains(string(name), "/") }

// Amount is the quantity as a whole number. "1k" and "1000m" are whole numbers; "1500m"
// and "1e30" are not, and say why.
func Amount(q resource.Quantity) scheduler.Amount {
	// Value rounds up, and is anything where the number is too large: what it returns is
	// believed only if it is exactly the quantity.
	value := q.Value()
	switch {
	case resource.NewQuantity(value, resource.DecimalSI).Cmp(q) == 0:
		return scheduler.Amount{Value: value}
	case q.CmpInt64(math.MaxInt64) > 0 || q.CmpInt64(math.MinInt64) < 0:
		return scheduler.Amount{Invalid: fmt.Sprintf("%s does not fit in 64 bits", q.String())}
	default:
		return scheduler.Amount{Invalid: fmt.Sprintf("%s is no whole number", q.String())}
	}
}
