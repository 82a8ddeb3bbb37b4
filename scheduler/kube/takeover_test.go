package kube

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// hold writes the Lease.
func hold(t *testing.T, client *fake.Clientset, holder string, transitions int32) {
	t.Helper()
	seconds := int32(15)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder,
		LeaseTransitions: &transitions, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now()}}}
	leases := client.CoordinationV1().Leases("ns")
	if _, err := leases.Update(t.Context(), l, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = leases.Create(t.Context(), l, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func followed(t *testing.T, client *fake.Clientset) *fence.Fence {
	hold(t, client, "me", 3)
	f := fence.Follow(client, "ns", "l", func(holder string) bool { return holder == "me" })
	f.Read(t.Context())
	return f
}

// versioned gives objects that are patched a new version, as an API server does.
func versioned(client *fake.Clientset) {
	var mu sync.Mutex
	version := 100
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		version++
		patch := a.(clienttesting.PatchActionImpl)
		patch.Patch = []byte(string(patch.Patch[:len(patch.Patch)-2]) + `,"resourceVersion":"` + strconv.Itoa(version) + `"}}`)
		return clienttesting.ObjectReaction(client.Tracker())(patch)
	})
}

func named(name, node string, annotations map[string]string) *v1.Pod {
	p := pod(types.UID("uid-"+name), node, v1.PodPending, "")
	p.Name, p.ResourceVersion, p.Annotations = name, "7", annotations
	return p
}

func TestTakeover(t *testing.T) {
	ended := named("ended", "", nil)
	ended.Status.Phase = v1.PodFailed
	client := fake.NewClientset(named("waits", "", nil), named("resized", "n1", map[string]string{api.AnnotationResize: "x"}),
		named("runs", "n1", nil), named("other", "", nil), ended)
	versioned(client)
	sink := &journal{}
	factory := NewInformers(client)
	feed, err := NewFeed(factory, sink)
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	require.NoError(t, feed.Wait(t.Context()))
	forgotten := 0
	takeover := &Takeover{Fence: followed(t, client), Client: client, Feed: feed, Log: slog.New(slog.DiscardHandler),
		RequestsGPUs: func(p *v1.Pod) bool { return p.Name != "other" }, Forget: func() { forgotten++ }}
	term, err := takeover.Term(t.Context())
	require.NoError(t, err)
	require.Equal(t, "me/3/", term.String())
	require.Equal(t, 1, forgotten)
	for name, changed := range map[string]bool{"waits": true, "resized": true, "runs": false, "other": false, "ended": false} {
		p, err := client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, changed, p.ResourceVersion != "7", name)
		require.Equal(t, changed, p.Annotations[api.AnnotationLeader] == "me/3/", name)
		if found, err := feed.pods.Pods("ns").Get(name); changed {
			require.NoError(t, err)
			require.Equal(t, p.ResourceVersion, found.ResourceVersion, "the informer has it")
		}
	}
	_, err = takeover.Term(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, forgotten, "once in a term")
	hold(t, client, "me", 5)
	takeover.Fence.Read(t.Context())
	_, err = takeover.Term(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, forgotten)
}

func TestTakeoverFails(t *testing.T) {
	for _, tc := range []struct {
		name    string
		pods    []runtime.Object
		prepare func(*fake.Clientset)
		want    string
	}{
		{"another leads already", []runtime.Object{named("p", "", nil)}, func(c *fake.Clientset) {
			c.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				other := "other"
				return true, &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &other}}, nil
			})
		}, "another replica is the leader"},
		{"pods can't be listed", nil, func(c *fake.Clientset) {
			c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no answer") })
		}, "list pending pods: no answer"},
		{"a pod can't be changed", []runtime.Object{named("p", "", nil)}, func(c *fake.Clientset) {
			c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no answer") })
		}, "change pod ns/p: no answer"},
		{"the pod is gone, so nothing shows how old the informer's state is", []runtime.Object{named("p", "", nil)}, func(c *fake.Clientset) {
			c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewNotFound(podResource, "p")
			})
		}, errNothingSeen.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset(tc.pods...)
			leads := followed(t, client)
			factory := NewInformers(client)
			feed, err := NewFeed(factory, &journal{})
			require.NoError(t, err)
			factory.Start(t.Context().Done())
			t.Cleanup(factory.Shutdown)
			require.NoError(t, feed.Wait(t.Context()))
			tc.prepare(client)
			takeover := &Takeover{Fence: leads, Client: client, Feed: feed, Log: slog.New(slog.DiscardHandler),
				RequestsGPUs: func(*v1.Pod) bool { return true }, Forget: func() { t.Error("it has not begun") }}
			_, err = takeover.Term(t.Context())
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// tookOver is a Takeover of that client. Its informer is synced.
func tookOver(t *testing.T, client *fake.Clientset) *Takeover {
	factory := NewInformers(client)
	feed, err := NewFeed(factory, &journal{})
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	require.NoError(t, feed.Wait(t.Context()))
	return &Takeover{Fence: followed(t, client), Client: client, Feed: feed, Log: slog.New(slog.DiscardHandler),
		RequestsGPUs: func(*v1.Pod) bool { return true }, Forget: func() {}}
}

// The pod names the term already: a patch that changes nothing gives it no new version.
func TestTakeoverChangesWhatNamesTheTerm(t *testing.T) {
	client := fake.NewClientset(named("p", "", map[string]string{api.AnnotationLeader: "me/3"}))
	versioned(client)
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var sent v1.Pod
		require.NoError(t, json.Unmarshal(a.(clienttesting.PatchAction).GetPatch(), &sent))
		_, err := time.Parse(time.RFC3339Nano, sent.Annotations[api.AnnotationRequeued])
		require.NoError(t, err, "it differs each time")
		return false, nil, nil
	})
	_, err := tookOver(t, client).Term(t.Context())
	require.NoError(t, err)
}

// What one try has changed is not changed again, and a pod that the API server refuses to change does not stop the others.
func TestTakeoverGoesOn(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fails int // tries
		tries int
	}{{"fails once", 1, 2}, {"always", 1000, mostTouches}} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset(named("a", "", nil), named("bad", "", nil), named("c", "", nil))
			versioned(client)
			var mu sync.Mutex
			patched := map[string]int{}
			client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				name := a.(clienttesting.PatchAction).GetName()
				patched[name]++
				if name == "bad" && patched[name] <= tc.fails {
					return true, nil, apierrors.NewForbidden(podResource, name, errors.New("no"))
				}
				return false, nil, nil
			})
			takeover := tookOver(t, client)
			for range tc.tries - 1 {
				_, err := takeover.Term(t.Context())
				require.ErrorContains(t, err, "change pod ns/bad")
			}
			_, err := takeover.Term(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string]int{"a": 1, "bad": tc.tries, "c": 1}, patched)
			require.Empty(t, takeover.tried.changed)
		})
	}
}

// Another term begins from the start.
func TestTakeoverForgetsProgress(t *testing.T) {
	client := fake.NewClientset(named("a", "", nil), named("bad", "", nil))
	versioned(client)
	refuses := true
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return refuses && a.(clienttesting.PatchAction).GetName() == "bad", nil, errors.New("no answer")
	})
	takeover := tookOver(t, client)
	_, err := takeover.Term(t.Context())
	require.ErrorContains(t, err, "change pod ns/bad: no answer")
	hold(t, client, "me", 4)
	takeover.Fence.Read(t.Context())
	refuses = false
	_, err = takeover.Term(t.Context())
	require.NoError(t, err)
	for _, name := range []string{"a", "bad"} {
		p, err := client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "me/4/", p.Annotations[api.AnnotationLeader])
	}
}

// The informer is behind: no term begins before it has the change.
func TestTakeoverWaitsForTheInformer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := fake.NewClientset(named("p", "", nil))
	leads := followed(t, client)
	factory := NewInformers(client)
	feed, err := NewFeed(factory, &journal{})
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	require.NoError(t, feed.Wait(t.Context()))
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		p := named("p", "", nil)
		p.ResourceVersion = "8" // of which the informer receives nothing
		time.AfterFunc(300*time.Millisecond, cancel)
		return true, p, nil
	})
	takeover := &Takeover{Fence: leads, Client: client, Feed: feed, Log: slog.New(slog.DiscardHandler),
		RequestsGPUs: func(*v1.Pod) bool { return true }, Forget: func() { t.Error("it has not begun") }}
	_, err = takeover.Term(ctx)
	require.ErrorContains(t, err, "wait for the change of pod ns/p")
}

// A leader binds only in its term, and takes a newer version of the pod only if the API server confirms the term.
func TestBindInTerm(t *testing.T) {
	granted := map[string]string{api.AnnotationGrant: "g"}
	s := newServer()
	client := s.client()
	leads := followed(t, client)
	term, err := leads.Term()
	require.NoError(t, err)
	seen := s.pod.DeepCopy()
	s.change(func(*v1.Pod) {}) // the next leader has taken over
	hold(t, client, "other", 4)
	err = Bind(t.Context(), client, term, seen, "n1", granted)
	require.ErrorIs(t, err, fence.ErrNotLeading)
	require.Len(t, s.sent, 1, "the newer version is not used")
	require.Empty(t, s.pod.Spec.NodeName)
	require.Equal(t, "me/3/", s.sent[0].Annotations[api.AnnotationLeader])
	require.NotContains(t, granted, api.AnnotationLeader)

	leads.Read(t.Context())
	require.ErrorIs(t, Bind(t.Context(), client, term, s.pod, "n1", granted), fence.ErrNotLeading)
	require.ErrorIs(t, Annotate(t.Context(), client, term, s.pod, granted, nil), fence.ErrNotLeading)
	require.Len(t, s.sent, 1)
	require.Zero(t, s.patches)

	// The API server does not know the new Lease yet: it refuses the term, and then not any more.
	hold(t, client, "me", 5)
	leads.Read(t.Context())
	term, err = leads.Term()
	require.NoError(t, err)
	s.answers = []error{apierrors.NewForbidden(podResource, "p", errors.New("gpuslice.io/leader is 'me/5', but 'other/4' leads"))}
	require.NoError(t, Bind(t.Context(), client, term, s.pod.DeepCopy(), "n1", granted))
	require.Equal(t, "me/5/", s.pod.Annotations[api.AnnotationLeader])
}
