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

// ErrUnknown is of a Bind after which the pod may be bound or not: its GPUs are not to be given back before its
// event, or a reservation's time, says which it is.
var ErrUnknown = errors.New("whether it was bound is not known")

// Bind binds the pod to the node and writes the annotations with it: the API server copies
// those of a Binding to the pod in the transaction that sets its node. So there is no pod
// that is bound without its grant, none that has a grant and is not bound, and no write
// more than a pod without GPUs costs.
//
// It is idempotent: a pod that is bound to the node with the same grant is bound. A Binding says of which
// version of the pod it is, and the API server takes it for no other: once the pod has changed, a Binding that
// is still on its way comes to nothing. So an answer that doesn't say whether the pod was bound (a timeout, a lost
// connection) is settled by looking, and by changing the pod where it is still the same, for
// as long as ctx lets it: whoever gave the pod's GPUs back meanwhile would give them out twice.
func Bind(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string, annotations map[string]string) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	for version, tries := pod.ResourceVersion, 0; ; tries++ {
		err := pods.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: version, Annotations: annotations},
			Target:     v1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err == nil || surelyRefused(err) {
			return bindError(pod, node, err)
		}
		found, looked := settle(ctx, client, pod, version)
		switch {
		case looked != nil:
			return fmt.Errorf("%w; and %w: %w", bindError(pod, node, err), ErrUnknown, looked)
		case found.UID == pod.UID && found.Spec.NodeName == node && found.Annotations[grant.AnnotationGrant] == annotations[grant.AnnotationGrant]:
			return nil
		case apierrors.IsConflict(err) && found.UID == pod.UID && found.Spec.NodeName == "" && found.ResourceVersion != version && tries < mostTries:
			version = found.ResourceVersion // the pod was changed since it was seen, as every label does
		default:
			return bindError(pod, node, err)
		}
	}
}

// mostTries is how often a pod that changes all the time is tried again at once.
const mostTries = 5

// annotationUnclear is written to a pod of which it is not known whether it is being bound; its value is the
// pod's version before. Nobody reads it.
const annotationUnclear = "gpuslice.io/bind-unclear"

// settle is the pod once no Binding of this version of it can come to anything any more: it is bound, or
// it is another version.
func settle(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, version string) (found *v1.Pod, err error) {
	pods := client.CoreV1().Pods(pod.Namespace)
	settled := func(ctx context.Context) (bool, error) {
		var err error
		found, err = pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && found.UID == pod.UID && found.Spec.NodeName == "" && version != "" && found.ResourceVersion == version {
			found, err = mark(ctx, client, pod, version)
		}
		switch {
		case err == nil:
			return true, nil
		case surelyRefused(err) && !apierrors.IsTooManyRequests(err):
			return false, err // the pod is gone, or may not be looked at
		}
		return false, nil
	}
	err = wait.PollUntilContextCancel(ctx, lookEvery, true, settled)
	return found, err
}

// mark changes the pod, and is what it is then.
func mark(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, version string) (*v1.Pod, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{annotationUnclear: version}}})
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
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
