package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const (
	// lockExpiry is HAMi's default.
	lockExpiry = 5 * time.Minute
	// lockPatience is less than a kube-scheduler waits for an extender.
	lockPatience = 10 * time.Second
)

// lockNode takes HAMi's lock of a node (hami.io/mutex.lock) for the pod. HAMi's device plugin serves the pod that has it,
// and releases it. A lock of a pod that is gone, and one that has expired, are taken over, as HAMi's scheduler does.
// The value is for unlockNode.
func lockNode(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string) (value string, err error) {
	var held error
	take := func(ctx context.Context) (bool, error) {
		var version string
		if version, held = lockable(ctx, client, pod, node); held != nil {
			return false, nil
		}
		value = time.Now().Format(time.RFC3339) + lockOwner(pod)
		err := writeLock(ctx, client, node, version, &value)
		switch {
		case apierrors.IsConflict(err):
			held = errors.New("the node changes")
			return false, nil
		case apierrors.IsForbidden(err):
			return false, fmt.Errorf("%w: set scheduler.hamiNodes=true in the chart, which lets the scheduler write this annotation", err)
		}
		return err == nil, err
	}
	err = wait.PollUntilContextTimeout(ctx, retryInterval, lockPatience, true, take)
	if wait.Interrupted(err) && held != nil {
		err = held
	}
	if err != nil {
		return "", fmt.Errorf("lock HAMi's node %s (annotation %s) for pod %s/%s: %w", node, api.AnnotationHAMiLock, pod.Namespace, pod.Name, err)
	}
	return value, nil
}

// lockOwner ends a lock's value.
func lockOwner(pod *v1.Pod) string { return "," + pod.Namespace + "," + pod.Name }

// lockable returns the node's version if the lock is free, or the pod's own.
func lockable(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string) (version string, held error) {
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	value, locked := object.Annotations[api.AnnotationHAMiLock]
	if !locked || strings.HasSuffix(value, lockOwner(pod)) {
		return object.ResourceVersion, nil
	}
	stamp, owner, _ := strings.Cut(value, ",")
	at, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return "", fmt.Errorf("%s: must be a time, a namespace and a pod: remove the annotation", quote.Short(value))
	}
	if time.Since(at) > lockExpiry {
		return object.ResourceVersion, nil
	}
	if namespace, name, ok := strings.Cut(owner, ","); ok {
		_, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return object.ResourceVersion, nil
		}
	}
	return "", fmt.Errorf("it is locked by %s since %s: HAMi's device plugin serves one pod at a time", quote.Short(owner), stamp)
}

// unlockNode releases the lock that lockNode took, and not that of a later try. Errors are not reported: the lock expires.
func unlockNode(ctx context.Context, client kubernetes.Interface, node, value string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPatience)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, retryInterval, true, func(ctx context.Context) (bool, error) {
		object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), nil
		}
		if object.Annotations[api.AnnotationHAMiLock] != value {
			return true, nil
		}
		return writeLock(ctx, client, node, object.ResourceVersion, nil) == nil, nil
	})
}

func writeLock(ctx context.Context, client kubernetes.Interface, node, version string, value *string) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": version, "annotations": map[string]*string{api.AnnotationHAMiLock: value},
	}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}
