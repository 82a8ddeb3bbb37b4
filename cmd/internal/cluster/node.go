package cluster

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Node returns the view of one node, and the GPUs with their connections by its Node object.
func (c *Cluster) Node(ctx context.Context, name string) (view.Node, scheduler.Inventory, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return view.Node{}, scheduler.Inventory{}, fmt.Errorf("node %s: %w", name, err)
	}
	agents, _, lost := c.servers(ctx, componentAgent)
	if lost != nil && !errors.Is(lost, errNotFound) {
		return view.Node{}, scheduler.Inventory{}, lost
	}
	var here []*v1.Pod
	for i := range agents {
		if agents[i].Spec.NodeName == name {
			here = append(here, &agents[i])
		}
	}
	n := c.node(ctx, node, here, lost == nil)
	if lost != nil {
		n.Problems = append(n.Problems, lost.Error())
	}
	if n.GPUsReadAt.IsZero() {
		n.Problems = append(n.Problems, fmt.Sprintf("grants and use on %s are not known: check the pod of gpuslice's agent there", name))
	}
	n.Name = name
	inventory, _, err := wire.DecodeNode(kube.Node(node))
	if err != nil {
		inventory = scheduler.Inventory{}
	}
	return n, inventory, nil
}

func (c *Cluster) NodeOf(ctx context.Context, namespace, pod string) (string, error) {
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("pod %s/%s not found: check the namespace", namespace, pod)
	case err != nil:
		return "", fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	case p.Spec.NodeName == "":
		return "", fmt.Errorf("pod %s/%s is not scheduled: run kubectl gpuslice explain %s/%s", namespace, pod, namespace, pod)
	}
	return p.Spec.NodeName, nil
}
