package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

func hamiNode(lock string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1"}}
	if lock != "" {
		n.Annotations = map[string]string{api.AnnotationHAMiLock: lock}
	}
	return n
}

// HAMi's device plugin serves the pod that has the node's lock: two pods that are bound at the same time would get each
// other's GPUs.
func TestBindToHAMisNode(t *testing.T) {
	allocating := map[string]string{api.AnnotationGrant: "g", api.AnnotationHAMiNode: "n1", api.AnnotationHAMiBindPhase: api.HAMiAllocating}
	ours := map[string]string{api.AnnotationGrant: "g", api.AnnotationHAMiNode: "n1", api.AnnotationHAMiBindPhase: api.HAMiSuccess}
	other := pod("u2", "n1", v1.PodPending, "1")
	other.Name = "other"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		lock        func(now time.Time) string
		release     bool // the device plugin releases it after a second
		bind, write error
		want        string
		holds       string // ends the lock afterwards
	}{
		{name: "free", annotations: allocating, holds: ",ns,p"},
		{name: "a node of ours", annotations: ours},
		{name: "held by another pod", annotations: allocating, lock: func(now time.Time) string { return now.Format(time.RFC3339) + ",ns,other" },
			want: `it is locked by "ns,other" since`, holds: ",ns,other"},
		{name: "held, and released", annotations: allocating, lock: func(now time.Time) string { return now.Format(time.RFC3339) + ",ns,other" },
			release: true, holds: ",ns,p"},
		{name: "held by a pod that is gone", annotations: allocating, lock: func(now time.Time) string { return now.Format(time.RFC3339) + ",ns,gone" }, holds: ",ns,p"},
		{name: "expired", annotations: allocating, lock: func(now time.Time) string { return now.Add(-6*time.Minute).Format(time.RFC3339) + ",ns,other" }, holds: ",ns,p"},
		{name: "expired, of an old version", annotations: allocating, lock: func(now time.Time) string { return now.Add(-6 * time.Minute).Format(time.RFC3339) }, holds: ",ns,p"},
		{name: "held by an old version", annotations: allocating, lock: func(now time.Time) string { return now.Format(time.RFC3339) }, want: "it is locked by"},
		{name: "its own, of an earlier try", annotations: allocating, lock: func(now time.Time) string { return now.Format(time.RFC3339) + ",ns,p" }, holds: ",ns,p"},
		{name: "malformed", annotations: allocating, lock: func(time.Time) string { return "yes" }, want: "must be a time, a namespace and a pod", holds: "yes"},
		{name: "the pod is not bound", annotations: allocating, bind: apierrors.NewForbidden(podResource, "p", errors.New("no")), want: "bind pod ns/p"},
		{name: "no right", annotations: allocating, write: apierrors.NewForbidden(v1.Resource("nodes"), "n1", errors.New("no")), want: "scheduler.hamiNodes=true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lock := ""
				if tc.lock != nil {
					lock = tc.lock(time.Now())
				}
				client := fake.NewClientset(hamiNode(lock), other)
				bound := false
				client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					binding := a.(clienttesting.CreateAction).GetObject().(*v1.Binding)
					require.Equal(t, map[string]string{"hami.io/vgpu-node": "n1"}, binding.Labels, "HAMi's monitor selects by it")
					bound = tc.bind == nil
					return true, binding, tc.bind
				})
				client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					return tc.write != nil, nil, tc.write
				})
				if tc.release {
					go func() {
						time.Sleep(time.Second)
						_ = writeLock(t.Context(), client, "n1", "", nil)
					}()
				}
				err := Bind(t.Context(), client, fence.Term{}, pod("u1", "", v1.PodPending, "1"), "n1", tc.annotations)
				if tc.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tc.want)
				}
				require.Equal(t, tc.want == "", bound)
				node, err := client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
				require.NoError(t, err)
				switch value := node.Annotations[api.AnnotationHAMiLock]; {
				case tc.holds != "":
					require.Contains(t, value, tc.holds)
				case tc.lock != nil:
					require.Equal(t, lock, value)
				default:
					require.Empty(t, value, "it is released")
				}
			})
		})
	}
}
