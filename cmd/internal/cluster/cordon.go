package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// GPU is the UUID of a node's GPU: by its index, its UUID, or the beginning of that.
func (c *Cluster) GPU(ctx context.Context, node, name string) (uuid string, err error) {
	n, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("node %s: %w", node, err)
	}
	inventory, _, err := wire.DecodeNode(kube.Node(n))
	if err != nil {
		return "", err
	}
	var found []string
	for _, gpu := range inventory.GPUs {
		switch {
		case fmt.Sprint(gpu.Index) == name || gpu.UUID == name:
			return gpu.UUID, nil
		case strings.HasPrefix(gpu.UUID, name) && len(name) > len("GPU-"):
			found = append(found, gpu.UUID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("node %s tells of no GPU %q: gpuslice status --cluster lists them", node, name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("GPU %q of node %s is %d GPUs (%s): write more of the UUID", name, node, len(found), strings.Join(found, ", "))
}

// Cordon adds a GPU to the node's cordoned ones (hami.io/device-cordon), or takes it out. It says
// whether anything has changed.
func (c *Cluster) Cordon(ctx context.Context, node, uuid string, on bool) (changed bool, err error) {
	nodes := c.client.CoreV1().Nodes()
	for tries := 0; ; tries++ {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("node %s: %w", node, err)
		}
		before := n.Annotations[wire.AnnotationCordon]
		list := slices.DeleteFunc(strings.Split(before, ","), func(s string) bool { return strings.TrimSpace(s) == "" })
		has := slices.ContainsFunc(list, func(s string) bool { return strings.TrimSpace(s) == uuid })
		if has == on {
			return false, nil
		}
		if on {
			list = append(list, uuid)
		} else {
			list = slices.DeleteFunc(list, func(s string) bool { return strings.TrimSpace(s) == uuid })
		}
		var value any // null removes it
		if len(list) > 0 {
			value = strings.Join(list, ",")
		}
		// Of this version of the node: another's cordon is not to be lost.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "annotations": map[string]any{wire.AnnotationCordon: value}}})
		if err != nil {
			return false, err
		}
		_, err = nodes.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "gpuslice"})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsConflict(err) || tries == mostTries {
			return false, fmt.Errorf("node %s: %w", node, err)
		}
	}
}

// mostTries is how often a node that changes all the time is tried again.
const mostTries = 10

// Holder is a pod that has a share of a GPU.
type Holder struct {
	Namespace, Name, UID string
	// MemoryMiB and Cores are what it has of the GPU.
	MemoryMiB int64
	Cores     int
}

func (h Holder) String() string { return h.Namespace + "/" + h.Name }

// Holders are the pods on the node that have a share of the GPU, by their annotations.
func (c *Cluster) Holders(ctx context.Context, node, uuid string) (holders []Holder, err error) {
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != node {
			continue
		}
		pod := kube.Pod(&pods.Items[i])
		placement, decodeErr := wire.DecodePod(pod, nil)
		if decodeErr != nil {
			err = errors.Join(err, decodeErr)
		}
		if placement == nil {
			continue
		}
		if use, has := scheduler.Uses(pod.Containers, placement.Containers)[uuid]; has {
			holders = append(holders, Holder{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, MemoryMiB: use.MemoryMiB, Cores: use.Cores})
		}
	}
	slices.SortFunc(holders, func(a, b Holder) int { return strings.Compare(a.String(), b.String()) })
	return holders, err
}
