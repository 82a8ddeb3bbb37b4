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

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// ErrRefused is of what the scheduler has refused. The error's text says why.
var ErrRefused = errors.New("refused")

// ErrUnanswered is of what nobody has answered in time.
var ErrUnanswered = errors.New("not answered")

// ErrNotApplied is of a container that has not yet what its grant says.
var ErrNotApplied = errors.New("not applied")

// lookEvery is how often a pod is looked at while its answer is awaited.
const lookEvery = 250 * time.Millisecond

// Pod is the pod of that name.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Granted are the shares of each of a pod's containers that has any, by its name.
func Granted(pod *v1.Pod) (*grant.PodGrant, error) {
	value, there := pod.Annotations[grant.AnnotationGrant]
	if !there {
		return nil, fmt.Errorf("pod %s/%s has no GPUs by gpuslice's scheduler (no annotation %s)", pod.Namespace, pod.Name, grant.AnnotationGrant)
	}
	return grant.DecodeGrant(value)
}

// OneContainer is the name of the container that is meant: the one that is named, or the only
// one that has GPUs.
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
		return "", nil, fmt.Errorf("pod %s/%s has several containers with GPUs (%s): name one, %s/%s:%s", pod.Namespace, pod.Name, strings.Join(names, ", "), pod.Namespace, pod.Name, names[0])
	case granted.Containers[name] == nil:
		return "", nil, fmt.Errorf("container %q of pod %s/%s has no GPUs; those that have: %s", name, pod.Namespace, pod.Name, strings.Join(names, ", "))
	}
	return name, granted.Containers[name], nil
}

// Resize asks the scheduler to resize the pod's containers, and waits for its answer until ctx ends.
// A refusal is ErrRefused; where ctx ends first, the request is taken back and it is ErrUnanswered.
func (c *Cluster) Resize(ctx context.Context, pod *v1.Pod, wanted map[string]grant.Wanted) (*v1.Pod, error) {
	request, err := grant.EncodeResize(wanted)
	if err != nil {
		return nil, err
	}
	pods := c.client.CoreV1().Pods(pod.Namespace)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{grant.AnnotationResize: request}}})
	if err != nil {
		return nil, err
	}
	before := pod.Annotations[grant.AnnotationResizeStatus]
	if _, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "gpuslice"}); err != nil {
		return nil, fmt.Errorf("ask for it on pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for {
		found, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && found.UID != pod.UID || apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("pod %s/%s is gone", pod.Namespace, pod.Name)
		}
		if err == nil {
			if answered, err := answer(found, request, before); answered {
				return found, err
			}
		}
		select {
		case <-ctx.Done():
			return c.takeBack(pod, request, before)
		case <-time.After(lookEvery):
		}
	}
}

// answer is what the scheduler says to the request, once it does.
func answer(pod *v1.Pod, request, before string) (answered bool, err error) {
	now, asked := pod.Annotations[grant.AnnotationResize]
	switch {
	case asked && now == request:
		return false, nil
	case asked:
		return true, fmt.Errorf("%w: another request has taken its place: %s", ErrRefused, now)
	}
	text := pod.Annotations[grant.AnnotationResizeStatus]
	var status grant.ResizeStatus
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Request != request {
		return true, fmt.Errorf("%w: the request was taken off the pod, and not answered (%s: %s)", ErrRefused, grant.AnnotationResizeStatus, text)
	}
	if status.Outcome != grant.ResizeBooked {
		return true, fmt.Errorf("%w: %s", ErrRefused, status.Message)
	}
	return true, nil
}

// takeBack takes a request away that nobody answers: it is not to be answered tomorrow. One that was answered
// meanwhile can't be taken back: the answer is told, and the pod as it is then.
func (c *Cluster) takeBack(pod *v1.Pod, request, before string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/annotations/gpuslice.io~1resize", "value": request},
		{"op": "remove", "path": "/metadata/annotations/gpuslice.io~1resize"},
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
			if answered, err := answer(found, request, before); answered {
				return found, err
			}
		}
		return nil, fmt.Errorf("%w by the scheduler in time; and the request is still on the pod (annotation %s): %w", ErrUnanswered, grant.AnnotationResize, err)
	}
	return nil, fmt.Errorf("%w by the scheduler in time, and taken back: does gpuslice's scheduler run, and does it place pods of scheduler %q?", ErrUnanswered, pod.Spec.SchedulerName)
}

// Applied waits until the node has given the pod's container what its grant says, by its
// agent's word, until ctx ends.
func (c *Cluster) Applied(ctx context.Context, pod *v1.Pod, container string, want []grant.Share) error {
	var last error
	for {
		var done bool
		if done, last = c.applied(ctx, pod, container, want); done {
			return nil
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(lookEvery):
		}
	}
}

func (c *Cluster) applied(ctx context.Context, pod *v1.Pod, container string, want []grant.Share) (bool, error) {
	agents, _, err := c.servers(ctx, componentAgent)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(agents, func(a v1.Pod) bool { return a.Spec.NodeName == pod.Spec.NodeName })
	if i < 0 {
		return false, fmt.Errorf("no agent of node %s can be asked", pod.Spec.NodeName)
	}
	var n view.Node
	if err := c.ask(ctx, &agents[i], portMetrics, "/api/v1/view", nil, &n); err != nil {
		return false, fmt.Errorf("the agent of node %s doesn't answer: %w", pod.Spec.NodeName, err)
	}
	for _, running := range n.Containers {
		if running.PodUID != string(pod.UID) || running.Name != container || running.State != string(ledger.StateActive) {
			continue
		}
		has := make([]grant.Share, len(running.Shares))
		for i, s := range running.Shares {
			has[i] = grant.Share{UUID: s.UUID, MemoryMiB: s.MemoryMiB, CorePercent: s.CorePercent}
		}
		if slices.Equal(has, want) {
			return true, nil
		}
		return false, fmt.Errorf("%w by the node's agent yet: the pod's events say why, or the agent's log", ErrNotApplied)
	}
	return false, errors.New("the container doesn't run: it has it from when it starts")
}
