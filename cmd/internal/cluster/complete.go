package cluster

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// NodesWithGPUs returns the names of the nodes with GPUs.
func (c *Cluster) NodesWithGPUs(ctx context.Context) (names []string, err error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		if inventory, _, _ := wire.DecodeNode(convert.Node(&nodes.Items[i])); len(inventory.GPUs) > 0 { // others are not completed
			names = append(names, nodes.Items[i].Name)
		}
	}
	return names, nil
}

// Pods returns the names of a namespace's pods that have not ended.
func (c *Cluster) Pods(ctx context.Context, namespace string) (names []string, err error) {
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

// Sharing returns the containers of a namespace that have shares: POD if it is the pod's only one, otherwise
// POD:CONTAINER.
func (c *Cluster) Sharing(ctx context.Context, namespace string) (names []string, err error) {
	pods, err := c.placed(ctx, namespace, "")
	for _, p := range pods {
		var containers []string
		for i, shares := range p.placement.Containers {
			if len(shares) > 0 && i < len(p.pod.Containers) {
				containers = append(containers, p.pod.Containers[i].Name)
			}
		}
		if len(containers) == 1 {
			names = append(names, p.pod.Name)
			continue
		}
		for _, container := range containers {
			names = append(names, p.pod.Name+":"+container)
		}
	}
	return names, err
}
