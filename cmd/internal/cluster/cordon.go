package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// GPU returns the UUID of a node's GPU by its index, its UUID or a prefix of it.
func (c *Cluster) GPU(ctx context.Context, node, name string) (uuid string, err error) {
	all, err := c.GPUs(ctx, node)
	if err != nil {
		return "", err
	}
	uuid, err = OneGPU(name, all, "kubectl gpuslice status")
	if err != nil {
		err = fmt.Errorf("node %s: %w", node, err)
	}
	return uuid, err
}

// GPUs returns the GPUs of a node, by its Node object.
func (c *Cluster) GPUs(ctx context.Context, node string) (all []GPU, err error) {
	n, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	inventory, _, err := wire.DecodeNode(convert.Node(n))
	for _, gpu := range inventory.GPUs {
		all = append(all, GPU{gpu.UUID, gpu.Index})
	}
	return all, err
}

// GPU is how a command names a GPU or a MIG device, which has the index -1.
type GPU struct {
	UUID  string
	Index int
}

// OneGPU returns the UUID of a GPU by its index, its UUID or a prefix of it. list is the command that lists all.
func OneGPU(name string, all []GPU, list string) (string, error) {
	var found []string
	for _, gpu := range all {
		switch {
		case gpu.UUID == name || gpu.Index >= 0 && strconv.Itoa(gpu.Index) == name:
			return gpu.UUID, nil
		case strings.HasPrefix(gpu.UUID, name) && len(name) > len("GPU-"):
			found = append(found, gpu.UUID)
		}
	}
	return One("GPU", name, found, list)
}

// One returns the only one of the matches of a name. list is the command that lists all.
func One(kind, name string, found []string, list string) (string, error) {
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%s %q not found: list all with %s", kind, name, list)
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	return "", fmt.Errorf("%s %q is ambiguous: use one of %s", kind, name, strings.Join(found, ", "))
}

// cordons are the cordoned GPUs of a node.
type cordons struct {
	uuids []string
	marks map[string]mark // by UUID: the GPUs that a defrag has cordoned, not an operator
}

// mark is a value of the annotation gpuslice.io/defrag-cordon.
type mark struct {
	Pod string `json:"pod"` // namespace/name of the pending pod
	ID  string `json:"id"`  // of the call
	// Until is when the call has ended.
	Until time.Time `json:"until"`
}

// left reports whether the call has ended without removing the cordon.
func (by mark) left() bool { return time.Now().After(by.Until) }

// cordonsOf ignores marks that can't be read, and those of GPUs that are not cordoned: another program has removed the cordon.
func cordonsOf(n *v1.Node) (now cordons) {
	now.uuids = strings.FieldsFunc(n.Annotations[api.AnnotationHAMiCordon], func(r rune) bool { return r == ',' || r == ' ' })
	if json.Unmarshal([]byte(n.Annotations[api.AnnotationDefragCordon]), &now.marks) != nil || now.marks == nil {
		now.marks = map[string]mark{}
	}
	maps.DeleteFunc(now.marks, func(uuid string, _ mark) bool { return !slices.Contains(now.uuids, uuid) })
	return now
}

// add cordons a GPU; nil: for an operator.
func (now *cordons) add(uuid string, by *mark) {
	if !slices.Contains(now.uuids, uuid) {
		now.uuids = append(now.uuids, uuid)
	}
	delete(now.marks, uuid)
	if by != nil {
		now.marks[uuid] = *by
	}
}

func (now *cordons) remove(uuid string) {
	now.uuids = slices.DeleteFunc(now.uuids, func(s string) bool { return s == uuid })
	delete(now.marks, uuid)
}

// annotations has null for those to remove.
func (now *cordons) annotations() (map[string]any, error) {
	set := map[string]any{api.AnnotationHAMiCordon: nil, api.AnnotationDefragCordon: nil}
	if len(now.uuids) > 0 {
		set[api.AnnotationHAMiCordon] = strings.Join(now.uuids, ",")
	}
	if len(now.marks) > 0 {
		text, err := json.Marshal(now.marks)
		if err != nil {
			return nil, err
		}
		set[api.AnnotationDefragCordon] = string(text)
	}
	return set, nil
}

// changeCordons changes the cordons of a node's GPUs in one write. change is called again after a conflict.
func (c *Cluster) changeCordons(ctx context.Context, node string, change func(*cordons) (changed bool, err error)) error {
	nodes := c.client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := cordonsOf(n)
		if changed, err := change(&now); err != nil || !changed {
			return err
		}
		annotations, err := now.annotations()
		if err != nil {
			return err
		}
		// The resource version makes a concurrent change a conflict.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "annotations": annotations}})
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "gpuslice"})
		return err
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// Cordon adds a GPU to a node's annotation hami.io/device-cordon for an operator, or removes it. A cordon of a defrag becomes the
// operator's.
func (c *Cluster) Cordon(ctx context.Context, node, uuid string, on bool) (changed bool, err error) {
	err = c.changeCordons(ctx, node, func(now *cordons) (bool, error) {
		_, marked := now.marks[uuid]
		changed = marked || slices.Contains(now.uuids, uuid) != on
		if on {
			now.add(uuid, nil)
		} else {
			now.remove(uuid)
		}
		return changed, nil
	})
	return changed && err == nil, err
}

// hold cordons GPUs for a defrag. GPUs that an operator has cordoned stay the operator's.
func (c *Cluster) hold(ctx context.Context, node string, uuids []string, own mark) error {
	return c.changeCordons(ctx, node, func(now *cordons) (changed bool, err error) {
		for _, uuid := range uuids {
			by, marked := now.marks[uuid]
			if marked && by.Pod != own.Pod && !by.left() {
				return false, fmt.Errorf("GPU %s: room is being made for pod %s, until %s: wait for that defrag; if it has ended: kubectl gpuslice uncordon %s %s",
					uuid, by.Pod, by.Until.Format(time.RFC3339), node, uuid)
			}
			if marked && by.ID != own.ID || !slices.Contains(now.uuids, uuid) {
				now.add(uuid, &own)
				changed = true
			}
		}
		return changed, nil
	})
}

// release removes the cordons with marks that match, and returns their GPUs.
func (c *Cluster) release(ctx context.Context, node string, match func(mark) bool) (uuids []string, err error) {
	err = c.changeCordons(ctx, node, func(now *cordons) (bool, error) {
		uuids = nil
		for uuid, by := range now.marks {
			if match(by) {
				uuids = append(uuids, uuid)
			}
		}
		slices.Sort(uuids)
		for _, uuid := range uuids {
			now.remove(uuid)
		}
		return len(uuids) > 0, nil
	})
	return uuids, err
}

// Holder is a pod that has a share of a GPU.
type Holder struct {
	Namespace, Name, UID string
	MemoryMiB            int64
	Cores                int
}

func (h Holder) String() string { return h.Namespace + "/" + h.Name }

// placedPod is a pod with shares of a node's GPUs, by its annotations.
type placedPod struct {
	node      string
	pod       *scheduler.Pod
	placement *scheduler.Placement
}

// placed returns the pods with shares on the node; empty: on all nodes, and of all namespaces. It also returns what it could read if the
// annotations of some pods are invalid.
func (c *Cluster) placed(ctx context.Context, namespace, node string) (found []placedPod, err error) {
	// All pods are read to show them, as often as each second: from the API server's cache, not from etcd.
	options := metav1.ListOptions{ResourceVersion: "0"}
	if node != "" {
		options.ResourceVersion = ""
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	found = []placedPod{}
	for i := range pods.Items {
		on := pods.Items[i].Spec.NodeName
		if on == "" || node != "" && on != node {
			continue
		}
		pod := convert.Pod(&pods.Items[i])
		placement, decodeErr := wire.DecodePod(pod, nil)
		if decodeErr != nil {
			err = errors.Join(err, decodeErr)
		}
		if placement != nil {
			found = append(found, placedPod{on, pod, placement})
		}
	}
	return found, err
}

// Holders returns the pods on the node that have a share of the GPU, by their annotations.
func (c *Cluster) Holders(ctx context.Context, node, uuid string) (holders []Holder, err error) {
	pods, err := c.placed(ctx, metav1.NamespaceAll, node)
	if pods == nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	for _, p := range pods {
		if use, has := scheduler.Uses(p.pod.Containers, p.placement.Containers)[uuid]; has {
			holders = append(holders, Holder{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, MemoryMiB: use.MemoryMiB, Cores: use.Cores})
		}
	}
	slices.SortFunc(holders, func(a, b Holder) int { return strings.Compare(a.String(), b.String()) })
	return holders, err
}

type Evictions struct {
	// GracePeriod is rounded up to seconds. Negative: the pods' own.
	GracePeriod time.Duration
	Report      func(format string, args ...any)
	pause       time.Duration // in tests
}

const (
	retryPause = 5 * time.Second
	// tryTimeout includes client-go's own wait for Retry-After.
	tryTimeout = 15 * time.Second
)

// Evict evicts pods by the API server, respecting PodDisruptionBudgets, and waits until they are gone or ctx ends.
// It retries pods that a budget delays. The error names all pods that remain.
func (c *Cluster) Evict(ctx context.Context, holders []Holder, how Evictions) error {
	if how.pause == 0 {
		how.pause = retryPause
	}
	var errs []error
	var evicted []Holder
	delayed := map[Holder]error{}
	fail := func(h Holder, err error) { errs = append(errs, fmt.Errorf("evict pod %s: %w", h, err)) }
	for left := holders; ; {
		var again []Holder
		for _, h := range left {
			later, err := c.evict(ctx, h, how)
			switch {
			case err == nil:
				evicted = append(evicted, h)
			case later:
				if delayed[h] == nil {
					how.Report("pod %s cannot be evicted yet: %v", h, err)
				}
				delayed[h] = err
				again = append(again, h)
			case ctx.Err() != nil && delayed[h] != nil:
				fail(h, delayed[h])
			default:
				fail(h, err)
			}
		}
		left = again
		if len(left) > 0 && sleep(ctx, how.pause) {
			continue
		}
		for _, h := range left {
			fail(h, delayed[h])
		}
		return errors.Join(append(errs, c.waitGone(ctx, evicted, how))...)
	}
}

func (c *Cluster) evict(ctx context.Context, h Holder, how Evictions) (later bool, err error) {
	uid := types.UID(h.UID)
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	}
	if how.GracePeriod >= 0 {
		seconds := int64((how.GracePeriod + time.Second - 1) / time.Second)
		eviction.DeleteOptions.GracePeriodSeconds = &seconds
	}
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err = c.client.PolicyV1().Evictions(h.Namespace).Evict(try, eviction)
	switch {
	case err == nil:
		how.Report("pod %s is evicted", h)
		return false, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // a new pod with this name
		return false, nil
	}
	return apierrors.IsTooManyRequests(err) || try.Err() != nil && ctx.Err() == nil, err
}

// waitGone checks the pods at least once, also after ctx has ended.
func (c *Cluster) waitGone(ctx context.Context, holders []Holder, how Evictions) error {
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), responseTimeout)
		defer cancel()
		holders = slices.DeleteFunc(holders, func(h Holder) bool {
			pod, err := c.client.CoreV1().Pods(h.Namespace).Get(look, h.Name, metav1.GetOptions{})
			gone := apierrors.IsNotFound(err) || err == nil &&
				(string(pod.UID) != h.UID || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed)
			if gone {
				how.Report("pod %s is gone", h)
			}
			return gone
		})
		return len(holders) == 0, nil
	})
	var errs []error
	for _, h := range holders {
		errs = append(errs, fmt.Errorf("pod %s is evicted but not gone: use a longer --timeout", h))
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, pause time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
