package extender

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// kube-scheduler counts replicas only: a pod that lacks memory never made it call /preempt.
func TestEvictForMemory(t *testing.T) {
	w := newWorld(t, 1, 1)
	at := time.Now()
	w.now = func() time.Time { return at }
	w.server.Clock = func() time.Time { return at }
	prioritized := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	for _, name := range []string{"low-a", "low-b"} {
		node, why := w.place(pod(name, 40000, 0, prioritized(1)))
		require.NotEmpty(t, node, why)
	}
	never := v1.PreemptNever
	_, _ = w.place(pod("polite", 40000, 0, prioritized(5), func(p *v1.Pod) { p.Spec.PreemptionPolicy = &never }))
	_, _ = w.place(pod("equal", 40000, 0, prioritized(1)))
	high := pod("high", 40000, 0, prioritized(5))
	node, _ := w.place(high)
	require.Empty(t, node)
	w.server.evictAll(t.Context())
	require.Empty(t, w.cluster.evicted, "kube-scheduler's own preemption goes first")
	at = at.Add(evictDelay)
	w.server.evictAll(t.Context())
	require.Len(t, w.cluster.evicted, 1)
	_, _ = w.place(high)
	at = at.Add(evictDelay)
	w.server.evictAll(t.Context())
	require.Len(t, w.cluster.evicted, 1, "the victim is about to end")

	w.cluster.remove(w.cluster.evicted[0])
	node, _ = w.place(pod("low-c", 40000, 0, prioritized(1)))
	require.Empty(t, node, "the GPU is kept for the pod")
	node, why := w.place(high)
	require.NotEmpty(t, node, why)
}

func TestKubeSchedulerPreemptsFirst(t *testing.T) {
	w := newWorld(t, 1, 1)
	at := time.Now()
	w.server.Clock = func() time.Time { return at }
	low := int32(1)
	_, why := w.place(pod("low", 60000, 0, func(p *v1.Pod) { p.Spec.Priority = &low }))
	require.Empty(t, why)
	priority := int32(5)
	high := pod("high", 60000, 0, func(p *v1.Pod) { p.Spec.Priority = &priority })
	_, _ = w.place(high)
	high.Status.NominatedNodeName = w.nodes[0]
	w.cluster.add(high)
	at = at.Add(evictDelay)
	w.server.evictAll(t.Context())
	require.Empty(t, w.cluster.evicted)
}

func TestEvictForQuota(t *testing.T) {
	w := newWorld(t, 2, 1)
	at := time.Now()
	w.server.Clock = func() time.Time { return at }
	prioritized := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	for i, name := range []string{"low-a", "low-b"} {
		p := pod(name, 20000, 0, prioritized(1))
		w.cluster.add(p)
		require.Empty(t, w.bind(p, w.nodes[i]))
	}
	w.engine.SetQuota("default", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 40000, Cores: quota.Unlimited}})
	high := pod("high", 40000, 0, prioritized(5))
	_, why := w.place(high)
	require.Contains(t, why, "quota of namespace default")
	w.server.evictAll(t.Context())
	require.Empty(t, w.cluster.evicted)
	at = at.Add(evictDelay)
	w.server.evictAll(t.Context())
	require.ElementsMatch(t, []string{"low-a", "low-b"}, w.cluster.evicted)
}

// A caller of /filter can send any priority: the stored one counts.
func TestEvictByStoredPriority(t *testing.T) {
	w := newWorld(t, 1, 1)
	at := time.Now()
	w.server.Clock = func() time.Time { return at }
	prioritized := func(priority int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &priority } }
	node, why := w.place(pod("runs", 60000, 0, prioritized(3)))
	require.NotEmpty(t, node, why)
	p := pod("p", 60000, 0, prioritized(1))
	w.cluster.add(p)
	forged := p.DeepCopy()
	*forged.Spec.Priority = 9
	passed, _ := w.filter(forged)
	require.Empty(t, passed)
	require.True(t, w.server.evicting.waits(at))
	at = at.Add(evictDelay)
	w.server.evictAll(t.Context())
	require.Empty(t, w.cluster.evicted)
}

// A group of higher priority preempts as a whole or not at all, also where kube-scheduler counts that it needs evictions.
func TestGroupPreempts(t *testing.T) {
	w := newWorld(t, 3, 1)
	at := time.Now()
	w.now = func() time.Time { return at }
	w.server.Clock = func() time.Time { return at }
	for i, node := range w.nodes {
		p := pod(fmt.Sprint("low-", i), 60000, 0, priority(int32(i)))
		w.cluster.add(p)
		require.Empty(t, w.bind(p, node))
	}
	group := func(name string, n int, important int32) (pods []*v1.Pod) {
		for i := range n {
			p := pod(fmt.Sprint(name, "-", i), 60000, 0, grouped(name, n), priority(important))
			w.cluster.add(p)
			pods = append(pods, p)
		}
		return pods
	}
	try := func(pods ...*v1.Pod) {
		for _, p := range pods {
			passed, _ := w.filter(p)
			require.Empty(t, passed)
			victims := map[string]*extenderv1.MetaVictims{}
			for i, node := range w.nodes {
				victims[node] = &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{{UID: fmt.Sprint("uid-low-", i)}}}
			}
			result, err := w.server.preempt(t.Context(), &extenderv1.ExtenderPreemptionArgs{Pod: p, NodeNameToMetaVictims: victims})
			require.NoError(t, err)
			require.Empty(t, result.NodeNameToMetaVictims, "none for one pod")
		}
		at = at.Add(evictDelay)
		w.server.evictAll(t.Context())
	}
	try(group("many", 4, 5)...)
	try(group("mixed", 2, 1)...)
	require.Empty(t, w.cluster.evicted)
	pods := group("g", 2, 5)
	try(pods...)
	require.Equal(t, []string{"low-0", "low-1"}, w.cluster.evicted)
	try(pods...)
	require.Len(t, w.cluster.evicted, 2, "they are about to end")
	w.cluster.remove(w.cluster.evicted...)
	node, _ := w.place(pod("late", 60000, 0, priority(1)))
	require.Empty(t, node, "the GPUs are kept for the group")
	for _, p := range pods {
		passed, result := w.filter(p)
		require.NotEmpty(t, passed, result)
	}
}
