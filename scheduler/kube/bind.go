package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// ErrUnknown: the pod may be bound. Keep its GPUs reserved until the pod's event.
var ErrUnknown = errors.New("it is unknown whether the pod was bound")

// Bind binds the pod and writes the annotations in one Binding: no pod is bound without its grant. It is
// idempotent. If the API server's answer is lost, Bind reads the pod, and changes it if it is not bound, so
// that a Binding in progress fails at its resourceVersion: releasing the GPUs of a bound pod would assign them
// twice. Each Binding is sent in the term and carries it. A newer version of the pod is used only if the API
// server confirms the term after it was read: the next leader changes pending pods (Takeover).
func Bind(ctx context.Context, client kubernetes.Interface, term fence.Term, pod *v1.Pod, node string, annotations map[string]string) (err error) {
	if err := term.Check(); err != nil {
		return fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
	}
	if annotations[api.AnnotationHAMiBindPhase] == api.HAMiAllocating {
		lock, lockErr := lockNode(ctx, client, pod, node)
		if lockErr != nil {
			return lockErr
		}
		defer func() {
			if err != nil && !errors.Is(err, ErrUnknown) {
				unlockNode(ctx, client, node, lock)
			}
		}()
	}
	pods := client.CoreV1().Pods(pod.Namespace)
	if annotations != nil {
		annotations = marked(term, annotations)
	}
	for version, tries := pod.ResourceVersion, 0; ; tries++ {
		if err := term.Check(); err != nil {
			return fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
		}
		err := pods.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: version,
				Annotations: annotations, Labels: hamiLabels(node, annotations)},
			Target: v1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err == nil {
			return nil
		}
		bindErr := fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
		if otherTerm(err) && tries < maxTermTries {
			if err := confirm(ctx, term, retryInterval); err != nil {
				return fmt.Errorf("%w; %w", bindErr, err)
			}
			continue
		}
		if rejected(err) {
			return bindErr
		}
		found, err2 := settle(ctx, client, pod, version)
		switch {
		case err2 != nil:
			return fmt.Errorf("%w; %w: %w", bindErr, ErrUnknown, err2)
		case found.UID == pod.UID && found.Spec.NodeName == node && found.Annotations[api.AnnotationGrant] == annotations[api.AnnotationGrant]:
			return nil
		case apierrors.IsConflict(err) && found.UID == pod.UID && found.Spec.NodeName == "" &&
			found.ResourceVersion != version && tries < maxTries:
			if err := confirm(ctx, term, 0); err != nil {
				return fmt.Errorf("%w; %w", bindErr, err)
			}
			version = found.ResourceVersion
		default:
			return bindErr
		}
	}
}

// hamiLabels are for HAMi's monitor, which selects pods by them. The API server copies a Binding's labels from 1.35 on.
func hamiLabels(node string, annotations map[string]string) map[string]string {
	if annotations[api.AnnotationHAMiNode] == "" || len(validation.IsValidLabelValue(node)) > 0 {
		return nil
	}
	return map[string]string{api.AnnotationHAMiNode: node}
}

// marked adds the term to annotations.
func marked(term fence.Term, annotations map[string]string) map[string]string {
	if term.String() == "" {
		return annotations
	}
	if annotations = maps.Clone(annotations); annotations == nil {
		annotations = map[string]string{}
	}
	annotations[api.AnnotationLeader] = term.String()
	return annotations
}

// otherTerm reports whether the admission policy refused the term: the API server may not know the newest Lease yet.
func otherTerm(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), api.AnnotationLeader)
}

func confirm(ctx context.Context, term fence.Term, after time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(after):
		return term.Confirm(ctx)
	}
}

const (
	maxTries      = 5
	maxTermTries  = 20 // 10 s
	retryInterval = 500 * time.Millisecond
)

// settle returns the pod when no Binding of this version can succeed any more.
func settle(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, version string) (found *v1.Pod, err error) {
	settled := func(ctx context.Context) (bool, error) {
		var err error
		found, err = client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && found.UID == pod.UID && found.Spec.NodeName == "" && version != "" && found.ResourceVersion == version {
			found, err = patch(ctx, client, pod, map[string]any{"annotations": map[string]any{api.AnnotationBindUnclear: version}})
		}
		if rejected(err) && !apierrors.IsTooManyRequests(err) {
			return false, err
		}
		return err == nil, nil
	}
	err = wait.PollUntilContextCancel(ctx, retryInterval, true, settled)
	return found, err
}

// patch merges the fields into the pod's metadata. It writes pods/status, so that schedulers need
// no right to change pods.
func patch(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, metadata map[string]any) (*v1.Pod, error) {
	return patchStatus(ctx, client, pod, metadata, nil)
}

func patchStatus(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, metadata, status map[string]any) (*v1.Pod, error) {
	metadata["uid"] = pod.UID
	fields := map[string]any{"metadata": metadata}
	if status != nil {
		fields["status"] = status
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{}, "status")
}

// rejected reports whether the API server changed nothing. At a conflict, an earlier try may have
// succeeded.
func rejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusConflict
}

// Annotate sets and removes annotations of the pod in one write. The write fails if the pod has changed: one that arrives late
// does not change the grant of a bound pod.
func Annotate(ctx context.Context, client kubernetes.Interface, term fence.Term, pod *v1.Pod, set map[string]string, remove []string) error {
	if len(set) == 0 && len(remove) == 0 {
		return nil
	}
	err := term.Check()
	if err == nil {
		err = annotate(ctx, client, pod, map[string]any{"resourceVersion": pod.ResourceVersion}, marked(term, set), remove)
	}
	if err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Requeue makes kube-scheduler try the pod again: a change of the pod is an event.
func Requeue(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, now time.Time) error {
	return annotate(ctx, client, pod, map[string]any{}, map[string]string{api.AnnotationRequeued: now.UTC().Format(time.RFC3339Nano)}, nil)
}

// Nominate requeues the pod, and makes kube-scheduler try the node first.
func Nominate(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string, now time.Time) error {
	requeued := map[string]any{api.AnnotationRequeued: now.UTC().Format(time.RFC3339Nano)}
	_, err := patchStatus(ctx, client, pod, map[string]any{"annotations": requeued}, map[string]any{"nominatedNodeName": node})
	return err
}

func annotate(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, metadata map[string]any, set map[string]string, remove []string) error {
	annotations := make(map[string]any, len(set)+len(remove))
	for _, key := range remove {
		annotations[key] = nil
	}
	for key, value := range set {
		annotations[key] = value
	}
	metadata["annotations"] = annotations
	_, err := patch(ctx, client, pod, metadata)
	return err
}
