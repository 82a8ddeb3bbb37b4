package kube

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler"
)

// journal records what it receives.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func (j *journal) SetNode(n *scheduler.Node) { j.add("node %s %s", n.Name, n.Annotations["a"]) }
func (j *journal) DeleteNode(name string)    { j.add("no node %s", name) }
func (j *journal) SetPod(p *scheduler.Pod) {
	j.add("pod %s on %q ended %t %s", p.UID, p.Node, p.Ended, p.Annotations["a"])
}
func (j *journal) DeletePod(uid string) { j.add("no pod %s", uid) }

func node(annotation string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"a": annotation}}}
}

func pod(uid types.UID, nodeName string, phase v1.PodPhase, annotation string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "ns", Name: "p", Annotations: map[string]string{"a": annotation}},
		Spec:       v1.PodSpec{NodeName: nodeName},
		Status:     v1.PodStatus{Phase: phase},
	}
}

// known is a Feed with informers that have these objects.
func known(t *testing.T, sink Sink, objects ...runtime.Object) *Feed {
	factory := NewInformers(fake.NewClientset())
	f, err := NewFeed(factory, sink)
	require.NoError(t, err)
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			require.NoError(t, factory.Core().V1().Nodes().Informer().GetStore().Add(o))
		case *v1.Pod:
			require.NoError(t, factory.Core().V1().Pods().Informer().GetStore().Add(o))
		}
	}
	return f
}

func TestEvents(t *testing.T) {
	relabeled := node("1")
	relabeled.Labels = map[string]string{"gpuslice.io/x": "y"}
	busy := node("1")
	busy.Status.Phase = v1.NodeRunning
	waiting, bound := pod("u1", "", v1.PodPending, "1"), pod("u1", "n1", v1.PodPending, "1")
	running, other := pod("u1", "n1", v1.PodRunning, "1"), pod("u1", "n1", v1.PodRunning, "2")
	ended, recreated := pod("u1", "n1", v1.PodSucceeded, "1"), pod("u2", "n1", v1.PodRunning, "1")
	none := func(cache.ResourceEventHandler) {}
	for _, tc := range []struct {
		name  string
		now   []runtime.Object
		nodes func(cache.ResourceEventHandler)
		pods  func(cache.ResourceEventHandler)
		want  []string
	}{
		{"a node comes", []runtime.Object{node("1")}, func(n cache.ResourceEventHandler) { n.OnAdd(node("1"), true) }, none, []string{"node n1 1"}},
		{"a node's GPUs change", []runtime.Object{node("2")}, func(n cache.ResourceEventHandler) { n.OnUpdate(node("1"), node("2")) }, none, []string{"node n1 2"}},
		{"a node's GPUs have changed again by now", []runtime.Object{node("3")}, func(n cache.ResourceEventHandler) { n.OnUpdate(node("1"), node("2")) }, none, []string{"node n1 3"}},
		{"a node's labels change", []runtime.Object{relabeled}, func(n cache.ResourceEventHandler) { n.OnUpdate(node("1"), relabeled) }, none, []string{"node n1 1"}},
		{"a node's status changes", []runtime.Object{busy}, func(n cache.ResourceEventHandler) { n.OnUpdate(node("1"), busy) }, none, nil},
		{"a node goes", nil, func(n cache.ResourceEventHandler) { n.OnDelete(node("1")) }, none, []string{"no node n1"}},
		{"a node went and came back", []runtime.Object{node("2")}, func(n cache.ResourceEventHandler) { n.OnDelete(node("1")) }, none, []string{"node n1 2"}},
		{"a node went without an event", nil, func(n cache.ResourceEventHandler) {
			n.OnDelete(cache.DeletedFinalStateUnknown{Key: "n1", Obj: node("1")})
		}, none, []string{"no node n1"}},
		{"a pod comes", []runtime.Object{waiting}, none, func(p cache.ResourceEventHandler) { p.OnAdd(waiting, false) }, []string{`pod u1 on "" ended false 1`}},
		{"a pod is bound", []runtime.Object{bound}, none, func(p cache.ResourceEventHandler) { p.OnUpdate(waiting, bound) }, []string{`pod u1 on "n1" ended false 1`}},
		{"a pod starts, or the informer resyncs", []runtime.Object{running}, none, func(p cache.ResourceEventHandler) { p.OnUpdate(bound, running) }, nil},
		{"a pod's annotation changes", []runtime.Object{other}, none, func(p cache.ResourceEventHandler) { p.OnUpdate(running, other) }, []string{`pod u1 on "n1" ended false 2`}},
		{"a pod ends", []runtime.Object{ended}, none, func(p cache.ResourceEventHandler) { p.OnUpdate(running, ended) }, []string{`pod u1 on "n1" ended true 1`}},
		{"a pod was deleted and made again without an event", []runtime.Object{recreated}, none, func(p cache.ResourceEventHandler) { p.OnUpdate(running, recreated) },
			[]string{"no pod u1", `pod u2 on "n1" ended false 1`, `pod u2 on "n1" ended false 1`}},
		{"a pod goes", nil, none, func(p cache.ResourceEventHandler) { p.OnDelete(running) }, []string{"no pod u1"}},
		{"a pod went and its name was taken", []runtime.Object{recreated}, none, func(p cache.ResourceEventHandler) { p.OnDelete(running) }, []string{"no pod u1", `pod u2 on "n1" ended false 1`}},
		{"a pod went without an event", nil, none, func(p cache.ResourceEventHandler) {
			p.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: running})
		}, []string{"no pod u1"}},
		{"something else", nil, func(n cache.ResourceEventHandler) { n.OnAdd(waiting, true) }, func(p cache.ResourceEventHandler) {
			p.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p"})
			p.OnUpdate(nil, node("1"))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := &journal{}
			f := known(t, j, tc.now...)
			tc.nodes(f.nodeHandler())
			tc.pods(f.podHandler())
			require.Equal(t, tc.want, j.take())
		})
	}
}

func TestFeed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(node("1"), pod("u1", "n1", v1.PodRunning, "1"))
	factory := NewInformers(client)
	j := &journal{}
	feed, err := NewFeed(factory, j)
	require.NoError(t, err)
	require.False(t, feed.Synced(), "nothing was started")

	short, stop := context.WithCancel(ctx)
	stop()
	require.ErrorIs(t, feed.Wait(short), context.Canceled)

	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	require.NoError(t, feed.Wait(ctx))
	require.ElementsMatch(t, []string{"node n1 1", `pod u1 on "n1" ended false 1`}, j.take(), "passed on before Wait returns")

	require.NoError(t, client.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return len(j.take()) == 1 }, time.Minute, time.Millisecond)
}
