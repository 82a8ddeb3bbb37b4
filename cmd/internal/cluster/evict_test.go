package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/grant"
)

func TestEvict(t *testing.T) {
	ended := granted(t, "ended", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	ended.Status.Phase = v1.PodSucceeded
	c, client := of(nil, ended, granted(t, "a", "n1", grant.Share{UUID: gpuA, MemoryMiB: 100, CorePercent: 5}),
		granted(t, "b", "n1", grant.Share{UUID: gpuB, MemoryMiB: 100}), granted(t, "c", "n1", grant.Share{UUID: gpuA, MemoryMiB: 200}, grant.Share{UUID: gpuB, MemoryMiB: 1}))
	holders, err := c.Holders(t.Context(), "n1", gpuA)
	require.NoError(t, err)
	assert.Equal(t, []Holder{{"ns", "a", "uid-a", 100, 5}, {"ns", "c", "uid-c", 200, 0}}, holders)

	var evicted []*policyv1.Eviction
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		evicted = append(evicted, e)
		return true, e, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", e.Name)
	})
	var reported []string
	report := func(format string, args ...any) { reported = append(reported, fmt.Sprintf(format, args...)) }
	require.NoError(t, c.Evict(t.Context(), holders, Evictions{GracePeriod: time.Minute, Report: report}))
	require.Len(t, evicted, 2)
	assert.Equal(t, int64(60), *evicted[0].DeleteOptions.GracePeriodSeconds)
	assert.Equal(t, types.UID("uid-a"), *evicted[0].DeleteOptions.Preconditions.UID, "no other pod of its name")
	assert.Equal(t, []string{"pod ns/a is evicted", "pod ns/c is evicted", "pod ns/a is gone", "pod ns/c is gone"}, reported)
}

// holding returns pods with a share of a GPU, in a cluster that answers evictions by allow.
func holding(t *testing.T, allow func(name string) error, names ...string) (*Cluster, []Holder) {
	t.Helper()
	var pods []runtime.Object
	for _, name := range names {
		pods = append(pods, granted(t, name, "n1", grant.Share{UUID: gpuA, MemoryMiB: 100}))
	}
	c, client := of(nil, pods...)
	evicting(client, func(e *policyv1.Eviction) error { return allow(e.Name) })
	holders, err := c.Holders(t.Context(), "n1", gpuA)
	require.NoError(t, err)
	require.Len(t, holders, len(names))
	return c, holders
}

func evicting(client *fake.Clientset, allow func(*policyv1.Eviction) error) {
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if err := allow(e); err != nil {
			return true, nil, err
		}
		return true, e, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", e.Name)
	})
}

// A pod that a budget delays is tried again after the others.
func TestEvictionDelayedByABudget(t *testing.T) {
	tried := map[string]int{}
	c, holders := holding(t, func(name string) error {
		tried[name]++
		if name == "a" && tried["c"] == 0 || name == "b" && tried[name] < 3 {
			return apierrors.NewTooManyRequests("the budget allows none", 0)
		}
		return nil
	}, "a", "b", "c")
	var reported []string
	report := func(format string, args ...any) { reported = append(reported, fmt.Sprintf(format, args...)) }
	require.NoError(t, c.Evict(t.Context(), holders, Evictions{GracePeriod: -1, Report: report, pause: time.Millisecond}))
	assert.Equal(t, map[string]int{"a": 2, "b": 3, "c": 1}, tried)
	assert.Equal(t, []string{
		"pod ns/a cannot be evicted yet: the budget allows none", "pod ns/b cannot be evicted yet: the budget allows none", "pod ns/c is evicted",
		"pod ns/a is evicted", "pod ns/b is evicted", "pod ns/a is gone", "pod ns/b is gone", "pod ns/c is gone",
	}, sortedTail(reported, 5))
}

// sortedTail sorts the lines from the i-th on: the order of the pods varies.
func sortedTail(reported []string, i int) []string {
	if len(reported) > i {
		slices.Sort(reported[i:])
	}
	return reported
}

// The error names all pods that remain, each with its reason.
func TestEvictErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, holders := holding(t, func(name string) error {
		switch name {
		case "b":
			return apierrors.NewForbidden(v1.Resource("pods"), name, nil)
		case "d":
			cancel() // the time is over after this round
			return nil
		}
		return apierrors.NewTooManyRequests("the budget of "+name+" allows none", 0)
	}, "a", "b", "c", "d")
	var reported []string
	err := c.Evict(ctx, holders, Evictions{GracePeriod: -1, Report: func(format string, args ...any) { reported = append(reported, fmt.Sprintf(format, args...)) }})
	for _, text := range []string{"pod ns/a: the budget of a allows none", "pod ns/b: ", "is forbidden", "pod ns/c: the budget of c allows none"} {
		require.ErrorContains(t, err, text)
	}
	assert.NotContains(t, err.Error(), "ns/d")
	assert.Contains(t, reported, "pod ns/d is gone")
}

// The error names all evicted pods that are not gone at the timeout.
func TestEvictedButNotGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, client := of(nil, granted(t, "a", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1}), granted(t, "b", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1}))
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, a.(clienttesting.CreateAction).GetObject(), nil
	})
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return false, nil, nil
	})
	err := c.Evict(ctx, []Holder{{Namespace: "ns", Name: "a", UID: "uid-a"}, {Namespace: "ns", Name: "b", UID: "uid-b"}}, Evictions{GracePeriod: -1, Report: func(string, ...any) {}})
	require.EqualError(t, err, "pod ns/a is evicted but not gone: use a longer --timeout\npod ns/b is evicted but not gone: use a longer --timeout")
}

// The grace period is rounded up to seconds. Only 0 is a kill.
func TestGracePeriodOfEvictions(t *testing.T) {
	for given, want := range map[time.Duration]*int64{
		-1: nil, 0: new(int64(0)), 1: new(int64(1)), 500 * time.Millisecond: new(int64(1)), time.Second: new(int64(1)), 1500 * time.Millisecond: new(int64(2)), time.Minute: new(int64(60)),
	} {
		c, client := of(nil, granted(t, "a", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1}))
		var got *int64
		evicting(client, func(e *policyv1.Eviction) error { got = e.DeleteOptions.GracePeriodSeconds; return nil })
		require.NoError(t, c.Evict(t.Context(), []Holder{{Namespace: "ns", Name: "a", UID: "uid-a"}}, Evictions{GracePeriod: given, Report: func(string, ...any) {}}))
		assert.Equal(t, want, got, given)
	}
}
