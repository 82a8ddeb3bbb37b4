package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// evicting is a cluster with a Refusals that is called by the test.
type evicting struct {
	*Refusals
	t       *testing.T
	now     time.Time
	leads   error
	answer  error // of the API server
	evicted []string
	events  []string
}

// refusing is a node that refuses the pods of these UIDs.
func refusing(name string, uids ...string) *v1.Node {
	var list []api.RefusedPod
	for _, uid := range uids {
		list = append(list, api.RefusedPod{UID: uid, Container: "main", Reason: "no room"})
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationNodeRefused: string(text)}}}
}

func refusedPod(uid types.UID, node string, owner types.UID) *v1.Pod {
	p := pod(uid, node, v1.PodPending, "")
	p.Name = "p-" + string(uid)
	p.Annotations = map[string]string{api.AnnotationGrant: "g"}
	if owner != "" {
		controller := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", UID: owner, Controller: &controller}}
	}
	return p
}

func newEvicting(t *testing.T, objects ...runtime.Object) *evicting {
	e := &evicting{t: t, now: time.Unix(1000, 0)}
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		require.Equal(t, "eviction", a.GetSubresource())
		eviction := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if e.answer == nil {
			e.evicted = append(e.evicted, string(*eviction.DeleteOptions.Preconditions.UID))
		}
		return true, nil, e.answer
	})
	factory := NewInformers(client)
	feed, err := NewFeed(factory, &journal{})
	require.NoError(t, err)
	e.Refusals, err = feed.Refusals(factory, RefusalsConfig{
		Client: client, Log: slog.New(slog.DiscardHandler), Clock: func() time.Time { return e.now },
		Term: func() (fence.Term, error) { return fence.Term{}, e.leads },
		Ours: func(name string) bool { return name != "other" },
		Event: func(_ *v1.Pod, kind, reason, message string) {
			e.events = append(e.events, kind+" "+reason+": "+message)
		},
	})
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	require.NoError(t, feed.Wait(t.Context()))
	t.Cleanup(factory.Shutdown)
	return e
}

// after plays the turns of that time.
func (e *evicting) after(d time.Duration, node string) {
	for end := e.now.Add(d); e.now.Before(end); e.now = e.now.Add(evictInterval) {
		e.node(e.t.Context(), node)
	}
}

func TestEvict(t *testing.T) {
	e := newEvicting(t, refusing("n1", "a"), refusedPod("a", "n1", "rs"))
	e.after(evictAfter, "n1")
	require.Empty(t, e.evicted, "it may end by itself")
	e.after(2*evictInterval, "n1")
	require.Equal(t, []string{"a"}, e.evicted)
	require.Equal(t, []string{"Warning GPUSliceEvicted: node n1 refused container main: no room. The pod is evicted, and ReplicaSet rs creates it again"}, e.events)
}

func TestEvictWithoutController(t *testing.T) {
	e := newEvicting(t, refusing("n1", "a"), refusedPod("a", "n1", ""))
	e.after(time.Minute, "n1")
	require.Empty(t, e.evicted)
	require.Len(t, e.events, 1)
	require.Contains(t, e.events[0], "no controller would create it again: delete it")
}

// A node reports pods of others, of other schedulers and that are gone.
func TestEvictOnlyOfTheNode(t *testing.T) {
	elsewhere, foreign, ended := refusedPod("b", "n2", "rs"), refusedPod("c", "n1", "rs"), refusedPod("d", "n1", "rs")
	foreign.Spec.SchedulerName = "other"
	ended.Status.Phase = v1.PodFailed
	e := newEvicting(t, refusing("n1", "b", "c", "d", "gone"), elsewhere, foreign, ended, refusedPod("e", "n1", "rs"))
	e.after(time.Minute, "n1")
	require.Empty(t, e.evicted)
	require.Empty(t, e.events)
}

func TestEvictOnlyAsLeader(t *testing.T) {
	e := newEvicting(t, refusing("n1", "a"), refusedPod("a", "n1", "rs"))
	e.leads = fence.ErrNotLeading
	e.after(time.Minute, "n1")
	require.Empty(t, e.evicted)
	e.leads = nil
	e.after(evictAfter+2*evictInterval, "n1")
	require.NotEmpty(t, e.evicted)
}

// refuse makes the node refuse these pods, as the informer has it.
func (e *evicting) refuse(node string, uids ...string) {
	_, err := e.Client.CoreV1().Nodes().Update(e.t.Context(), refusing(node, uids...), metav1.UpdateOptions{})
	require.NoError(e.t, err)
	require.Eventually(e.t, func() bool {
		n, err := e.feed.nodes.Get(node)
		return err == nil && n.Annotations[api.AnnotationNodeRefused] == refusing(node, uids...).Annotations[api.AnnotationNodeRefused]
	}, time.Minute, time.Millisecond)
}

// withReplacements makes pods that the controller creates after evictions.
func (e *evicting) withReplacements(pods ...*v1.Pod) {
	for _, p := range pods {
		p.CreationTimestamp = metav1.NewTime(e.now.Add(time.Hour))
		_, err := e.Client.CoreV1().Pods("ns").Update(e.t.Context(), p, metav1.UpdateOptions{})
		require.NoError(e.t, err)
	}
}

// Pods that a controller creates again, and that the same node refuses again, are evicted at growing intervals, after the first
// ones.
func TestEvictAgain(t *testing.T) {
	uids := []string{"a", "b", "c", "d", "e"}
	var pods []*v1.Pod
	objects := []runtime.Object{refusing("n1", "a")}
	for _, uid := range uids {
		pods = append(pods, refusedPod(types.UID(uid), "n1", "rs"))
		objects = append(objects, pods[len(pods)-1])
	}
	e := newEvicting(t, objects...)
	e.withReplacements(pods[1:]...)
	e.after(evictAfter+evictInterval, "n1")
	for i, uid := range uids[1:3] {
		e.refuse("n1", uid)
		e.after(evictAfter, "n1")
		require.Len(t, e.evicted, i+1)
		e.after(evictInterval, "n1")
		require.Equal(t, uids[:i+2], e.evicted, "not later than the first one")
	}
	e.refuse("n1", "d")
	e.after(evictAfter+evictInterval, "n1")
	require.Len(t, e.evicted, 3)
	e.after(firstPause-evictAfter, "n1")
	require.Equal(t, uids[:4], e.evicted)
	e.refuse("n1", "e")
	e.after(firstPause+evictInterval, "n1")
	require.Len(t, e.evicted, 4, "the pause has doubled")
	e.after(firstPause, "n1")
	require.Equal(t, uids, e.evicted)
	// What the node has done with them does not delay a pod on another one.
	require.True(t, e.now.Before(e.paused[placed{"rs", "n1"}].until(freeEvictions)))
}

// A controller's pod on a node is not delayed by refusals of another node.
func TestEvictOnAnotherNode(t *testing.T) {
	uids := []string{"a", "b", "c", "d"}
	other := refusedPod("other", "n2", "rs")
	objects, pods := []runtime.Object{refusing("n1"), refusing("n2"), other}, []*v1.Pod{other}
	for _, uid := range uids {
		pods = append(pods, refusedPod(types.UID(uid), "n1", "rs"))
		objects = append(objects, pods[len(pods)-1])
	}
	e := newEvicting(t, objects...)
	e.withReplacements(pods...)
	for e.now.Before(time.Unix(2000, 0)) && len(e.evicted) < len(uids) {
		e.refuse("n1", uids[len(e.evicted)])
		e.after(evictInterval, "n1")
	}
	require.Equal(t, uids, e.evicted)
	e.refuse("n2", "other")
	e.after(evictAfter+evictInterval, "n2")
	require.Contains(t, e.evicted, "other")
}

// A pod that each node refuses is not evicted on all of them without a pause.
func TestEvictOnEachNode(t *testing.T) {
	const nodes = 100
	var objects []runtime.Object
	var pods []*v1.Pod
	for i := range nodes {
		name := fmt.Sprint("n", i)
		pods = append(pods, refusedPod(types.UID(fmt.Sprint("pod", i)), name, "rs"))
		objects = append(objects, refusing(name), pods[i])
	}
	e := newEvicting(t, objects...)
	e.withReplacements(pods...)
	start := e.now
	for i := 0; i < nodes && e.now.Sub(start) < nodes*(evictAfter+evictInterval); i = len(e.evicted) {
		e.refuse(fmt.Sprint("n", i), fmt.Sprint("pod", i))
		e.after(evictInterval, fmt.Sprint("n", i))
	}
	require.Greater(t, len(e.evicted), freeEvictionsAnywhere)
	require.Less(t, len(e.evicted), freeEvictionsAnywhere+10)
}

// Pauses do not overflow.
func TestLongestPause(t *testing.T) {
	began := time.Unix(1000, 0)
	for count := freeEvictions; count < 1000; count++ {
		took := pause{began, count}.until(freeEvictions).Sub(began)
		require.GreaterOrEqual(t, took, firstPause)
		require.LessOrEqual(t, took, longestPause)
	}
	require.Equal(t, longestPause, pause{began, 1000}.until(freeEvictions).Sub(began))
}

// Pods of one controller that are refused at the same time do not wait for each other.
func TestEvictTogether(t *testing.T) {
	uids := []string{"a", "b", "c", "d", "e"}
	objects := []runtime.Object{refusing("n1", uids...)}
	for _, uid := range uids {
		objects = append(objects, refusedPod(types.UID(uid), "n1", "rs"))
	}
	e := newEvicting(t, objects...)
	e.after(30*time.Second-evictInterval, "n1")
	for _, uid := range uids {
		require.Contains(t, e.evicted, uid)
	}
}

// A refusal that has ended counts from the beginning when it comes back.
func TestEvictAfterAnotherRefusal(t *testing.T) {
	e := newEvicting(t, refusing("n1", "a", "b"), refusedPod("a", "n1", "rs"), refusedPod("b", "n1", ""))
	e.after(evictAfter, "n1")
	e.refuse("n1")
	e.after(evictInterval, "n1")
	require.Empty(t, e.refused)
	e.refuse("n1", "a", "b")
	e.after(evictAfter, "n1")
	require.Empty(t, e.evicted)
	e.after(evictInterval, "n1")
	require.Equal(t, []string{"a"}, e.evicted)
	require.Len(t, e.events, 2)
	require.NoError(t, e.Client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { _, err := e.feed.nodes.Get("n1"); return err != nil }, time.Minute, time.Millisecond)
	require.False(t, e.node(t.Context(), "n1"))
	require.Empty(t, e.refused)
}

// A node can't have pods evicted that no scheduler gave GPUs.
func TestEvictOnlyWithGrants(t *testing.T) {
	system := refusedPod("a", "n1", "ds")
	system.Annotations = nil
	hami := refusedPod("b", "n1", "rs")
	hami.Annotations = map[string]string{api.AnnotationHAMiAllocated: "x"}
	e := newEvicting(t, refusing("n1", "a", "b"), system, hami)
	e.after(time.Minute, "n1")
	require.Contains(t, e.evicted, "b")
	require.NotContains(t, e.evicted, "a")
}

// A budget refuses the eviction: it is tried again.
func TestEvictRefused(t *testing.T) {
	e := newEvicting(t, refusing("n1", "a"), refusedPod("a", "n1", "rs"))
	e.answer = apierrors.NewTooManyRequests("a budget", 1)
	e.after(time.Minute, "n1")
	require.Empty(t, e.events)
	e.answer = nil
	e.after(2*evictInterval, "n1")
	require.Equal(t, []string{"a"}, e.evicted)
}

// What a node writes is not trusted.
func TestEvictHostileList(t *testing.T) {
	long := refusing("n1", "a")
	long.Annotations[api.AnnotationNodeRefused] = strings.Replace(long.Annotations[api.AnnotationNodeRefused], "no room", strings.Repeat("é", 100000), 1)
	malformed := refusing("n2")
	malformed.Annotations[api.AnnotationNodeRefused] = "{"
	e := newEvicting(t, long, malformed, refusedPod("a", "n1", ""))
	require.False(t, e.node(t.Context(), "n2"), "until it changes")
	e.after(time.Minute, "n1")
	require.Len(t, e.events, 1)
	require.Less(t, len(e.events[0]), 700)
}
