package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

func TestPreempt(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}})
	victim := engine.Victim{UID: "u", Namespace: "ns", Name: "p"}
	var seen *v1.Pod
	client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		uid := a.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions.UID
		require.Equal(t, "u", string(*uid), "another pod of that name stays")
		object, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), "ns", "p")
		require.NoError(t, err)
		seen = object.(*v1.Pod)
		return false, nil, nil
	})
	require.NoError(t, Preempt(ctx, client, fence.Term{}, victim, "for a group", false))
	require.Len(t, seen.Status.Conditions, 1)
	require.Equal(t, v1.DisruptionTarget, seen.Status.Conditions[0].Type)
	require.Equal(t, v1.PodReasonPreemptionByScheduler, seen.Status.Conditions[0].Reason)
	require.True(t, Preempted(seen))
	require.False(t, Preempted(&v1.Pod{}))
	require.NoError(t, Preempt(ctx, client, fence.Term{}, victim, "for a group", false), "it is gone")
}

func TestPreemptAgain(t *testing.T) {
	client := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}})
	require.NoError(t, Preempt(t.Context(), client, fence.Term{}, engine.Victim{UID: "u", Namespace: "ns", Name: "p"}, "for a group", true))
	require.Len(t, client.Actions(), 1, "no second patch")
	require.Equal(t, "delete", client.Actions()[0].GetVerb())
}

func TestRefused(t *testing.T) {
	for err, want := range map[error]bool{
		apierrors.NewForbidden(v1.Resource("pods"), "p", errors.New("a policy")):         true,
		apierrors.NewConflict(v1.Resource("pods"), "p", errors.New("its UID")):           true,
		apierrors.NewInternalError(errors.New("lost")):                                   false,
		apierrors.NewTimeoutError("late", 1):                                             false,
		context.DeadlineExceeded:                                                         false,
		fmt.Errorf("wrapped: %w", apierrors.NewForbidden(v1.Resource("pods"), "p", nil)): true,
	} {
		require.Equal(t, want, Refused(err), err)
	}
}
