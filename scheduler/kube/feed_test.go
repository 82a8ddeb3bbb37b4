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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler"
)

// journal writes down what it is told.
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

func TestEvents(t *testing.T) {
	relabeled := node("1")
	relabeled.Labels = map[string]string{"gpuslice.io/x": "y"}
	busy := node("1")
	busy.Status.Phase = v1.NodeRunning
	for _, tc := range []struct {
		name  string
		event func(nodes, pods cache.ResourceEventHandler)
		want  []string
	}{
		{"a node comes", func(n, _ cache.ResourceEventHandler) { n.OnAdd(node("1"), true) }, []string{"node n1 1"}},
		{"a node's cards change", func(n, _ cache.ResourceEventHandler) { n.OnUpdate(node("1"), node("2")) }, []string{"node n1 2"}},
		{"a node's labels change", func(n, _ cache.ResourceEventHandler) { n.OnUpdate(node("1"), relabeled) }, []string{"node n1 1"}},
		{"a node's status changes", func(n, _ cache.ResourceEventHandler) { n.OnUpdate(node("1"), busy) }, nil},
		{"a node goes", func(n, _ cache.ResourceEventHandler) { n.OnDelete(node("1")) }, []string{"no node n1"}},
		{"a node went while nobody watched", func(n, _ cache.ResourceEventHandler) {
			n.OnDelete(cache.DeletedFinalStateUnknown{Key: "n1", Obj: node("1")})
		}, []string{"no node n1"}},
		{"a pod comes", func(_, p cache.ResourceEventHandler) { p.OnAdd(pod("u1", "", v1.PodPending, "1"), false) },
			[]string{`pod u1 on "" ended false 1`}},
		{"a pod is bound", func(_, p cache.ResourceEventHandler) {
			p.OnUpdate(pod("u1", "", v1.PodPending, "1"), pod("u1", "n1", v1.PodPending, "1"))
		}, []string{`pod u1 on "n1" ended false 1`}},
		{"a pod starts, or the informer resyncs", func(_, p cache.ResourceEventHandler) {
			p.OnUpdate(pod("u1", "n1", v1.PodPending, "1"), pod("u1", "n1", v1.PodRunning, "1"))
		}, nil},
		{"a pod's annotation changes", func(_, p cache.ResourceEventHandler) {
			p.OnUpdate(pod("u1", "n1", v1.PodRunning, "1"), pod("u1", "n1", v1.PodRunning, "2"))
		}, []string{`pod u1 on "n1" ended false 2`}},
		{"a pod ends", func(_, p cache.ResourceEventHandler) {
			p.OnUpdate(pod("u1", "n1", v1.PodRunning, "1"), pod("u1", "n1", v1.PodSucceeded, "1"))
		}, []string{`pod u1 on "n1" ended true 1`}},
		{"a pod was deleted and made anew while nobody watched", func(_, p cache.ResourceEventHandler) {
			p.OnUpdate(pod("u1", "n1", v1.PodRunning, "1"), pod("u2", "n1", v1.PodRunning, "1"))
		}, []string{"no pod u1", `pod u2 on "n1" ended false 1`}},
		{"a pod goes", func(_, p cache.ResourceEventHandler) { p.OnDelete(pod("u1", "n1", v1.PodRunning, "1")) }, []string{"no pod u1"}},
		{"a pod went while nobody watched", func(_, p cache.ResourceEventHandler) {
			p.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: pod("u1", "n1", v1.PodRunning, "1")})
		}, []string{"no pod u1"}},
		{"something else", func(n, p cache.ResourceEventHandler) {
			n.OnAdd(pod("u1", "", v1.PodPending, ""), true)
			p.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p"})
			p.OnUpdate(nil, node("1"))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := &journal{}
			tc.event(nodeHandler(j), podHandler(j))
			require.Equal(t, tc.want, j.take())
		})
	}
}

func TestFeed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(node("1"), pod("u1", "n1", v1.PodRunning, "1"))
	factory := NewInformers(client)
	j := &journal{}
	feeding, err := Feed(factory, j)
	require.NoError(t, err)
	require.False(t, feeding.Synced(), "nothing was started")

	short, stop := context.WithCancel(ctx)
	stop()
	require.ErrorIs(t, feeding.Wait(short), context.Canceled)

	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	require.NoError(t, feeding.Wait(ctx))
	require.ElementsMatch(t, []string{"node n1 1", `pod u1 on "n1" ended false 1`}, j.take(), "told before Wait returns")

	require.NoError(t, client.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return len(j.take()) == 1 }, 10*time.Second, time.Millisecond)
}
