// Package kube connects Kubernetes with the scheduler's model: Pod and Node convert objects,
// Feed passes informer events to the engine, Bind binds a pod with its grant, Resizer answers
// resize requests. It decides nothing about GPUs.
package kube

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/scheduler"
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

// ended is false for a terminating pod: its containers run.
func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func container(c *v1.Container, kind scheduler.Kind) scheduler.Container {
	return scheduler.Container{Name: c.Name, Kind: kind, Resources: extended(c.Resources)}
}

// extended returns the resources with a domain in their names.
func extended(r v1.ResourceRequirements) map[string]scheduler.Amount {
	var amounts map[string]scheduler.Amount
	// The API server requires both to be equal.
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

// Amount converts a quantity to an integer: "1k" and "1000m" are valid, "1500m" and "1e30" are not.
func Amount(q resource.Quantity) scheduler.Amount {
	// Value rounds up and overflows: compare it with the quantity.
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
