package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
)

func TestPlan(t *testing.T) {
	want := defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/a", UID: "u", From: "n1", To: "n2"}}, GPUs: []string{gpuA}}
	c, _ := of(map[string]any{"gpuslice/scheduler-n1:8080/debug/defrag": want}, server("scheduler", "n1", "http", 8080))
	plan, err := c.Plan(t.Context(), "ns", "p")
	require.NoError(t, err)
	require.Equal(t, want, plan)
	require.Equal(t, []string{"cordon GPU " + gpuA + " of node n1 until the pods are gone", "evict pod ns/a from node n1: it fits on node n2 then", "then pod ns/p fits on node n1"}, Steps(plan))
	c, _ = of(map[string]any{"gpuslice/scheduler-n1:8080/debug/defrag": errors.New("no resizes or moves make room")}, server("scheduler", "n1", "http", 8080))
	_, err = c.Plan(t.Context(), "ns", "p")
	require.ErrorContains(t, err, "no resizes or moves make room")
}

// The pods of a plan are resized and evicted, and the pending pod is waited for.
func TestCarry(t *testing.T) {
	pending := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	small, moved := granted(t, "small", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000}), granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, client := of(nil, pending, small, moved, node("n1", gpuA, gpuB))
	cordoned := func() string {
		n, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", "n1")
		require.NoError(t, err)
		return n.(*v1.Node).Annotations[api.AnnotationHAMiCordon]
	}
	_, err := c.Cordon(t.Context(), "n1", gpuB, true)
	require.NoError(t, err)
	scheduling(client, func(string) (grant.ResizeStatus, string) {
		return grant.ResizeStatus{Outcome: grant.ResizeReserved}, ""
	})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		require.Equal(t, gpuB+","+gpuA, cordoned())
		require.NoError(t, client.Tracker().Delete(a.GetResource(), "ns", e.Name))
		placed := pending.DeepCopy()
		placed.Spec.NodeName = "n1"
		return true, e, client.Tracker().Update(a.GetResource(), placed, "ns")
	})
	failures := 0
	client.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.GetAction).GetName() == "p" && failures < 2 {
			failures++
			return true, nil, apierrors.NewServiceUnavailable("a restart")
		}
		return false, nil, nil
	})
	var said []string
	how := Evictions{GracePeriod: -1, pause: time.Millisecond, Report: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	plan := defrag.Plan{Pod: "ns/p", Node: "n1",
		Resizes: []defrag.Resize{{Pod: "ns/small", UID: string(small.UID), MemoryMiB: map[string]int64{"main": 4000}}},
		Moves:   []defrag.Move{{Pod: "ns/moved", UID: string(moved.UID), From: "n1", To: "n2"}}, GPUs: []string{gpuA, gpuB}}
	require.NoError(t, c.Carry(t.Context(), plan, how))
	require.Equal(t, []string{"pod ns/small is resized", "pod ns/moved is evicted", "pod ns/moved is gone", "pod ns/p is placed on node n1"}, said)
	require.Equal(t, gpuB, cordoned(), "an operator's cordon stays")
	require.Equal(t, 2, failures, "the API server that does not answer is asked again")
	again, cancel := context.WithCancel(t.Context())
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, apierrors.NewServiceUnavailable("a restart")
	})
	err = c.Carry(again, defrag.Plan{Pod: "ns/p"}, how)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "a restart")
	client.ReactionChain = client.ReactionChain[1:]
	require.NoError(t, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
	require.ErrorContains(t, c.Carry(t.Context(), defrag.Plan{Pod: "ns/p"}, how), "not found")
	plan.Resizes[0].UID = "another"
	require.ErrorContains(t, c.Carry(t.Context(), plan, how), "created again since the plan")
}

// What is cordoned for evictions is uncordoned also when they end early.
func TestCarryUncordons(t *testing.T) {
	c, client := of(nil, granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1}), node("n1", gpuA))
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, apierrors.NewTooManyRequests("a budget", 1)
	})
	how := Evictions{GracePeriod: -1, pause: time.Millisecond, Report: func(string, ...any) {}}
	err := c.Carry(ctx, defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", From: "n1", To: "n1"}}, GPUs: []string{gpuA}}, how)
	require.ErrorContains(t, err, "a budget")
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, n.Annotations[api.AnnotationHAMiCordon])
}
