package kube

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

var podResource = schema.GroupResource{Resource: "pods"}

func TestBind(t *testing.T) {
	lost := errors.New("connection lost")
	granted := map[string]string{api.AnnotationGrant: "g"}
	bound := pod("u1", "n1", v1.PodPending, "1")
	bound.Annotations = granted
	otherwise := bound.DeepCopy()
	otherwise.Annotations = map[string]string{api.AnnotationGrant: "other"}
	elsewhere := bound.DeepCopy()
	elsewhere.Spec.NodeName = "n2"
	recreated := bound.DeepCopy()
	recreated.UID = "u2"
	unavailable := apierrors.NewServiceUnavailable("etcd")
	for _, tc := range []struct {
		name   string
		answer error // to the binding
		looks  []error
		found  *v1.Pod
		want   string
	}{
		{name: "bound"},
		{name: "refused", answer: apierrors.NewForbidden(podResource, "p", errors.New("no right")), want: "bind pod ns/p to node n1"},
		{name: "busy", answer: apierrors.NewTooManyRequests("later", 1), want: "later"},
		{name: "gone", answer: apierrors.NewNotFound(podResource, "p"), want: "not found"},
		{name: "the answer was lost, and it is bound", answer: lost, found: bound},
		{name: "the server failed, and it is bound", answer: unavailable, found: bound},
		{name: "it is bound since an earlier try", answer: apierrors.NewConflict(podResource, "p", errors.New("already assigned")), found: bound},
		{name: "the answer was lost, and it is not bound", answer: lost, found: pod("u1", "", v1.PodPending, "1"), want: "connection lost"},
		{name: "the answer and two more were lost", answer: lost, looks: []error{lost, unavailable}, found: bound},
		{name: "it is bound with another grant", answer: lost, found: otherwise, want: "connection lost"},
		{name: "it is bound elsewhere", answer: lost, found: elsewhere, want: "connection lost"},
		{name: "another pod of its name is bound", answer: lost, found: recreated, want: "connection lost"},
		{name: "the answer was lost, and it is gone", answer: lost, looks: []error{apierrors.NewNotFound(podResource, "p")}, want: "unknown whether"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			var binding *v1.Binding
			client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				require.Equal(t, "binding", a.GetSubresource())
				binding = a.(clienttesting.CreateAction).GetObject().(*v1.Binding)
				return true, nil, tc.answer
			})
			client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if len(tc.looks) > 0 {
					err := tc.looks[0]
					tc.looks = tc.looks[1:]
					return true, nil, err
				}
				require.NotNil(t, tc.found, "no read is needed")
				return true, tc.found, nil
			})
			err := Bind(t.Context(), client, fence.Term{}, pod("u1", "", v1.PodPending, ""), "n1", granted)
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
			require.Equal(t, &v1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", Annotations: granted},
				Target:     v1.ObjectReference{Kind: "Node", Name: "n1"},
			}, binding)
		})
	}
}

func TestBindEndsWithItsContext(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	outage := func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, errors.New("connection refused")
	}
	client.PrependReactor("*", "pods", outage)
	require.ErrorIs(t, Bind(ctx, client, fence.Term{}, pod("u1", "", v1.PodPending, ""), "n1", nil), context.Canceled)
}

func TestAnnotate(t *testing.T) {
	there := pod("u1", "", v1.PodPending, "1")
	there.Annotations["forged"] = "x"
	client := fake.NewClientset(there)
	require.NoError(t, Annotate(t.Context(), client, fence.Term{}, there, nil, nil))
	require.Empty(t, client.Actions(), "nothing to write")
	require.NoError(t, Annotate(t.Context(), client, fence.Term{}, there, map[string]string{"b": "2"}, []string{"forged", "never there"}))
	now, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, now.Annotations)
	patch := client.Actions()[0].(clienttesting.PatchAction).GetPatch()
	require.Equal(t, "status", client.Actions()[0].GetSubresource())
	require.Contains(t, string(patch), `"uid":"u1"`, "another pod of this name is not changed")

	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusConflict, Message: "uid"}}
	})
	require.ErrorContains(t, Annotate(t.Context(), client, fence.Term{}, there, map[string]string{"b": "2"}, nil), "annotate pod ns/p: uid")
}
