package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// SecondNode is the node that AddNode adds.
const SecondNode = "node-2"

// AddNode adds a node with these simulated GPUs, at least one of them not in MIG mode: a containerd, a kubelet and a
// kube-proxy with a network, mounts and cgroups of their own. What is returned is the same Kubernetes, of which the node
// is the second. RemoveNode has to be called also after an error.
func (c *Cluster) AddNode(ctx context.Context, gpus ...string) (*Cluster, error) {
	second, err := c.addNode(ctx, harness.NodeOptions{GPUs: gpus})
	if err != nil {
		return second, err
	}
	if err := second.labelNode(ctx); err != nil {
		return second, err
	}
	if err := second.WaitNode(ctx); err != nil {
		return second, err
	}
	return second, c.WaitRelease(ctx)
}

// AddCPUNode is AddNode for a node without a GPU, a driver and a label.
func (c *Cluster) AddCPUNode(ctx context.Context) (*Cluster, error) {
	second, err := c.addNode(ctx, harness.NodeOptions{NoGPUs: true})
	if err != nil {
		return second, err
	}
	return second, harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := c.API.CoreV1().Nodes().Get(ctx, SecondNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		isReady := func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}
		if !slices.ContainsFunc(node.Status.Conditions, isReady) || len(node.Spec.Taints) > 0 {
			return fmt.Errorf("the node is not ready: %v, taints %v", node.Status.Conditions, node.Spec.Taints)
		}
		return nil
	})
}

func (c *Cluster) addNode(ctx context.Context, o harness.NodeOptions) (*Cluster, error) {
	second := &Cluster{name: SecondNode, API: c.API, options: c.options, identities: c.identities, noGPUs: o.NoGPUs}
	c.second = second
	var err error
	o.NoAgent, o.Progress = true, c.options.Progress
	o.Enter = func(m *harness.Machine) ([]string, error) {
		command, err := second.enter(m, c.namespaces.enterNetwork())
		if err != nil {
			return nil, err
		}
		for _, route := range [][]string{
			append(c.namespaces.enterNetwork(), "ip", "route", "add", second.network.pods, "via", second.network.node),
			// The tests ask its programs. It goes with the cluster's link.
			{"ip", "route", "add", second.network.node, "via", c.network.node},
		} {
			if _, err := harness.Run(ctx, nil, route[0], route[1:]...); err != nil {
				return nil, err
			}
		}
		return command, nil
	}
	if second.Node, err = harness.NewNode(ctx, o); err != nil {
		return second, err
	}
	root, err := harness.Repository()
	if err != nil {
		return second, err
	}
	if err := second.ImportImage(ctx, filepath.Join(root, "build/image/gpuslice.tar")); err != nil {
		return second, err
	}
	if err := second.StartKubelet(ctx); err != nil {
		return second, err
	}
	return second, second.StartKubeProxy(ctx)
}

// RemoveNode takes the second node away, with its pods.
func (c *Cluster) RemoveNode(ctx context.Context) error {
	second := c.second
	if second == nil {
		return nil
	}
	c.second = nil
	// Its kubelet would make the object again.
	errs := []error{stop(second.Kubelet)}
	if err := c.API.CoreV1().Nodes().Delete(ctx, SecondNode, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	pods, err := c.API.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + SecondNode})
	if err != nil {
		return errors.Join(append(errs, err, second.Close(ctx))...)
	}
	now := int64(0)
	for _, p := range pods.Items {
		err := c.API.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete pod %s: %w", p.Name, err))
		}
	}
	return errors.Join(append(errs, second.Close(ctx), c.WaitRelease(ctx))...)
}
