package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
)

// ErrUnknown: the pod may be bound. Keep its GPUs reserved until the pod's event.
var ErrUnknown = errors.New("it is unknown whether the pod was bound")

// Bind binds the pod and writes the annotations in one Binding: no pod is bound without its grant. It is
// idempotent. If the API server's answer is lost, Bind reads the pod, and changes it if it is not bound, so
// that a Binding in progress fails at its resourceVersion: releasing the GPUs of a bound pod would assign them
// twice.
func Bind(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string, annotations map[string]string) (err error) {
	if annotations[api.AnnotationHAMiBindPhase] == api.HAMiAllocating {
		if err := lockNode(ctx, client, pod, node); err != nil {
			return err
		}
		defer func() {
			if err != nil && !errors.Is(err, ErrUnknown) {
				unlockNode(ctx, client, pod, node)
			}
		}()
	}
	pods := client.CoreV1().Pods(pod.Namespace)
	for version, tries := pod.ResourceVersion, 0; ; tries++ {
		err := pods.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: version,
				Annotations: annotations, Labels: hamiLabels(node, annotations)},
			Target: v1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err == nil {
			return nil
		}
		bindErr := fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
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

const (
	maxTries      = 5
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
	metadata["uid"] = pod.UID
	data, err := json.Marshal(map[string]any{"metadata": metadata})
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

// Annotate sets and removes annotations of the pod in one write.
func Annotate(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, set map[string]string, remove []string) error {
	annotations := make(map[string]any, len(set)+len(remove))
	for _, key := range remove {
		annotations[key] = nil
	}
	for key, value := range set {
		annotations[key] = value
	}
	if len(annotations) == 0 {
		return nil
	}
	if _, err := patch(ctx, client, pod, map[string]any{"annotations": annotations}); err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
