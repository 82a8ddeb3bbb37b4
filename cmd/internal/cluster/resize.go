package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
)

var (
	ErrRefused    = errors.New("refused")
	ErrUnanswered = errors.New("not answered")
	ErrNotApplied = errors.New("not applied")
)

const pollInterval = 250 * time.Millisecond

func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Granted returns the shares of a pod's containers, by name.
func Granted(pod *v1.Pod) (*grant.PodGrant, error) {
	value, there := pod.Annotations[api.AnnotationGrant]
	if !there {
		return nil, fmt.Errorf("pod %s/%s has no GPUs by gpuslice's scheduler (no annotation %s): check its resources and schedulerName", pod.Namespace, pod.Name, api.AnnotationGrant)
	}
	return grant.DecodeGrant(value)
}

// OneContainer returns the shares of the named container, or of the only one with GPUs.
func OneContainer(pod *v1.Pod, name string) (string, []grant.Share, error) {
	granted, err := Granted(pod)
	if err != nil {
		return "", nil, err
	}
	var names []string
	for n := range granted.Containers {
		names = append(names, n)
	}
	slices.Sort(names)
	switch {
	case name == "" && len(names) == 1:
		name = names[0]
	case name == "":
		return "", nil, fmt.Errorf("pod %s/%s has several containers with GPUs (%s): name one, as %s/%s:%s", pod.Namespace, pod.Name, strings.Join(names, ", "), pod.Namespace, pod.Name, names[0])
	case granted.Containers[name] == nil:
		return "", nil, fmt.Errorf("container %q of pod %s/%s has no GPUs: name one of %s", name, pod.Namespace, pod.Name, strings.Join(names, ", "))
	}
	return name, granted.Containers[name], nil
}

// Resize requests a resize from the scheduler and waits for the answer. If ctx ends first, it removes the request.
func (c *Cluster) Resize(ctx context.Context, pod *v1.Pod, wanted map[string]grant.Wanted) (*v1.Pod, error) {
	request, err := grant.EncodeResize(wanted)
	if err != nil {
		return nil, err
	}
	pods := c.client.CoreV1().Pods(pod.Namespace)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{api.AnnotationResize: request}}})
	if err != nil {
		return nil, err
	}
	if _, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "gpuslice"}); err != nil {
		return nil, fmt.Errorf("write the request to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for {
		found, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && found.UID != pod.UID || apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("pod %s/%s is gone", pod.Namespace, pod.Name)
		}
		if err == nil {
			if answered, err := answer(found, request); answered {
				return found, err
			}
		}
		if !sleep(ctx, pollInterval) {
			return c.withdraw(pod, request)
		}
	}
}

func answer(pod *v1.Pod, request string) (answered bool, err error) {
	now, pending := pod.Annotations[api.AnnotationResize]
	switch {
	case pending && now == request:
		return false, nil
	case pending:
		return true, fmt.Errorf("%w: another request replaced it: %s", ErrRefused, now)
	}
	text := pod.Annotations[api.AnnotationResizeStatus]
	var status grant.ResizeStatus
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Request != request {
		return true, fmt.Errorf("%w: the request was removed from the pod without an answer (%s: %s): try again", ErrRefused, api.AnnotationResizeStatus, text)
	}
	if status.Outcome != grant.ResizeReserved {
		return true, fmt.Errorf("%w: %s", ErrRefused, status.Message)
	}
	return true, nil
}

// withdraw removes a request, so that it is not answered later. It returns an answer that arrives meanwhile.
func (c *Cluster) withdraw(pod *v1.Pod, request string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), responseTimeout)
	defer cancel()
	key := "/metadata/annotations/" + strings.ReplaceAll(api.AnnotationResize, "/", "~1")
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": key, "value": request},
		{"op": "remove", "path": key},
	})
	if err == nil {
		_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "gpuslice"})
	}
	if err != nil {
		found, looked := c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(looked) || looked == nil && found.UID != pod.UID:
			return nil, fmt.Errorf("pod %s/%s is gone", pod.Namespace, pod.Name)
		case looked == nil:
			if answered, err := answer(found, request); answered {
				return found, err
			}
		}
		return nil, fmt.Errorf("%w by the scheduler in time, and the request is still on the pod: remove its annotation %s: %w", ErrUnanswered, api.AnnotationResize, err)
	}
	return nil, fmt.Errorf("%w by the scheduler in time, request withdrawn: check that gpuslice's scheduler runs and schedules pods of schedulerName %q", ErrUnanswered, pod.Spec.SchedulerName)
}

// Applied waits until the node's agent reports the container with the shares, or ctx ends.
func (c *Cluster) Applied(ctx context.Context, pod *v1.Pod, container string, want []grant.Share) error {
	var last error
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (done bool, _ error) {
		done, last = c.applied(ctx, pod, container, want)
		return done, nil
	})
	return last
}

func (c *Cluster) applied(ctx context.Context, pod *v1.Pod, container string, want []grant.Share) (bool, error) {
	agents, _, err := c.servers(ctx, componentAgent)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(agents, func(a v1.Pod) bool { return a.Spec.NodeName == pod.Spec.NodeName })
	if i < 0 {
		return false, fmt.Errorf("node %s has no pod of gpuslice's agent: check its DaemonSet", pod.Spec.NodeName)
	}
	var n view.Node
	if err := c.request(ctx, &agents[i], portMetrics, "/api/v1/view", nil, &n); err != nil {
		return false, fmt.Errorf("the agent of node %s does not answer: %w", pod.Spec.NodeName, err)
	}
	for _, running := range n.Containers {
		if running.PodUID != string(pod.UID) || running.Name != container || running.State != api.StateActive {
			continue
		}
		has := make([]grant.Share, len(running.Shares))
		for i, s := range running.Shares {
			has[i] = grant.Share{UUID: s.UUID, MemoryMiB: s.MemoryMiB, CorePercent: s.CorePercent}
		}
		if slices.Equal(has, want) {
			return true, nil
		}
		return false, fmt.Errorf("%w by the node's agent yet: see the pod's events and the agent's log", ErrNotApplied)
	}
	return false, errors.New("the container is not running: the change takes effect when it starts")
}
