package kube

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// Refused reports whether an error is the API server's decision: nothing was changed.
func Refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
}

// Preempted reports whether the pod has Preempt's condition.
func Preempted(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// Preempt deletes the pod as kube-scheduler's preemption does: with the condition DisruptionTarget, whatever budgets are
// left. Another pod of that name stays. It returns nil if the pod is gone. marked: the pod has the condition.
func Preempt(ctx context.Context, client kubernetes.Interface, term fence.Term, pod engine.Victim, message string, marked bool) error {
	if err := term.Check(); err != nil {
		return err
	}
	uid := types.UID(pod.UID)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid},
		"status": map[string]any{"conditions": []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: v1.PodReasonPreemptionByScheduler, Message: message, LastTransitionTime: metav1.Now()}}},
	})
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(pod.Namespace)
	if !marked {
		_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err == nil {
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
