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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/grant"
)

// Bind binds the pod to the node and writes the annotations with it: the API server copies
// those of a Binding to the pod in the transaction that sets its node. So there is no pod
// that is bound without its grant, none that has a grant and is not bound, and no write
// more than a pod without cards costs.
//
// It is idempotent: a pod that is bound to the node with the same grant is bound. An answer
// that doesn't say whether the pod was bound (a timeout, a lost connection) is settled by
// looking, for as long as ctx lets it: whoever gave the pod's cards back meanwhile would
// give them out twice.
func Bind(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string, annotations map[string]string) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}
	err := pods.Bind(ctx, binding, metav1.CreateOptions{})
	if err == nil || surelyRefused(err) {
		return bindError(pod, node, err)
	}
	var found *v1.Pod
	look := func(ctx context.Context) (bool, error) {
		var looked error
		found, looked = pods.Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case looked == nil:
			return true, nil
		case surelyRefused(looked) && !apierrors.IsTooManyRequests(looked):
			return false, looked // the pod is gone, or may not be looked at
		}
		return false, nil
	}
	if looked := wait.PollUntilContextCancel(ctx, lookEvery, true, look); looked != nil {
		return fmt.Errorf("%w; and whether it was bound is not known: %w", bindError(pod, node, err), looked)
	}
	if found.UID == pod.UID && found.Spec.NodeName == node && found.Annotations[grant.AnnotationGrant] == annotations[grant.AnnotationGrant] {
		return nil
	}
	return bindError(pod, node, err)
}

// lookEvery is how often a pod is asked for of an API server that doesn't answer.
const lookEvery = 500 * time.Millisecond

func bindError(pod *v1.Pod, node string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
}

// surelyRefused says that the API server did nothing. A conflict is none of these: the pod
// may be bound since an earlier try.
func surelyRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusConflict
}

// Annotate sets and removes annotations of the pod in one write. It is idempotent; another
// pod of the same name is left alone. It writes through pods/status, as whoever may change
// a pod's status can: a scheduler needs that right anyway, and none to change pods.
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err == nil {
		_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
