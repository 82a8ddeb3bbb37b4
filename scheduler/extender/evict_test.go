package extender

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

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
