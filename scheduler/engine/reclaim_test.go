package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

func inNamespace(p *scheduler.Pod, namespace string, priority int32) *scheduler.Pod {
	p.Namespace, p.Priority = namespace, priority
	return p
}

func all(Victim) bool { return true }

func uids(victims []Victim) (names []string) {
	for _, v := range victims {
		names = append(names, v.UID)
	}
	return names
}

// The quota is used up by pods on several nodes: evicting those of one node, as DefaultPreemption does, is not enough.
func TestReclaimWithinNamespace(t *testing.T) {
	e := newEngine(t, Options{})
	for i := range 3 {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 1)...))
		e.SetPod(place(t, e, inNamespace(podOf(fmt.Sprint("low", i), "1/20000/0"), "ns", int32(i)), nodeName(i)))
	}
	e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 60000, Cores: quota.Unlimited}})
	high := inNamespace(podOf("high", "1/40000/0"), "ns", 5)
	node, victims := e.Reclaim(e.Snapshot(), high, requestOf(t, e, high), all)
	require.NotEmpty(t, node)
	require.ElementsMatch(t, []string{"low0", "low1"}, uids(victims), "the least important ones")
	node, victims = e.Reclaim(e.Snapshot(), high, requestOf(t, e, high), func(v Victim) bool { return v.UID != "low0" })
	require.NotEmpty(t, node)
	require.ElementsMatch(t, []string{"low1", "low2"}, uids(victims))
	equal := inNamespace(podOf("equal", "1/40000/0"), "ns", 1)
	_, victims = e.Reclaim(e.Snapshot(), equal, requestOf(t, e, equal), all)
	require.Empty(t, victims, "one of lower priority does not make enough room")
	other := inNamespace(podOf("other", "1/40000/0"), "other", 5)
	_, victims = e.Reclaim(e.Snapshot(), other, requestOf(t, e, other), all)
	require.Empty(t, victims, "no quota")
}

func TestReclaimFromBorrowers(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf(nodeName(0), h100s(0, 2)...))
	pooled := quota.Quota{Limits: quota.Limits{MemoryMiB: 40000, Cores: quota.Unlimited}, Pool: "p"}
	e.SetQuota("a", "q", pooled)
	e.SetQuota("b", "q", pooled)
	for i := range 4 {
		e.SetPod(place(t, e, inNamespace(podOf(fmt.Sprint("a", i), "1/20000/0"), "a", 100+int32(i)), nodeName(0)))
	}
	b := inNamespace(podOf("b", "1/40000/0"), "b", 0)
	r := requestOf(t, e, b)
	verdict := e.Evaluate(e.Snapshot(), b, r).Verdict(nodeName(0))
	require.Contains(t, verdict.Text(), "of the quota pool p: 40000 requested, 80000 of 80000 used")
	_, victims := e.Reclaim(e.Snapshot(), b, r, all)
	require.ElementsMatch(t, []string{"a0", "a1"}, uids(victims), "what is borrowed, whatever its priority, and no more")
	more := inNamespace(podOf("more", "1/40001/0"), "b", 0)
	_, victims = e.Reclaim(e.Snapshot(), more, requestOf(t, e, more), all)
	require.Empty(t, victims, "it would borrow itself")
}

// Once the victims are gone, the pod fits; no victim is of higher priority or of a namespace that does not borrow.
func TestReclaimMakesRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		nodes := rapid.IntRange(1, 3).Draw(t, "nodes")
		for i := range nodes {
			e.SetNode(nodeOf(nodeName(i), h100s(i, 1)...))
		}
		for _, namespace := range []string{"a", "b"} {
			q := quota.Quota{Limits: quota.Limits{MemoryMiB: rapid.Int64Range(10, 120).Draw(t, "quota") * 1000, Cores: quota.Unlimited}}
			if rapid.Bool().Draw(t, "pooled") {
				q.Pool = "p"
			}
			e.SetQuota(namespace, "q", q)
		}
		pods := map[string]*scheduler.Pod{}
		draw := func(uid string) *scheduler.Pod {
			return inNamespace(podOf(uid, fmt.Sprintf("1/%d/0", rapid.IntRange(1, 8).Draw(t, "size")*10000)),
				rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), rapid.Int32Range(0, 3).Draw(t, "priority"))
		}
		for i := range 8 {
			p := draw(fmt.Sprint("p", i))
			r, at := requestOf(t, e, p), nodeName(rapid.IntRange(0, nodes-1).Draw(t, "node"))
			if placement, err := e.Reserve(p, r, at, "test"); err == nil {
				p = bindTo(given(t, p, placement), at)
				e.SetPod(p)
				pods[p.UID] = p
			}
		}
		pending := draw("pending")
		r := requestOf(t, e, pending)
		if _, fit := e.Evaluate(e.Snapshot(), pending, r).Reasons(); fit > 0 {
			return
		}
		node, victims := e.Reclaim(e.Snapshot(), pending, r, all)
		for _, v := range victims {
			require.True(t, v.Namespace != pending.Namespace || pods[v.UID].Priority < pending.Priority)
			e.DeletePod(v.UID)
		}
		if node != "" {
			verdict := e.Evaluate(e.Snapshot(), pending, r).Verdict(node)
			require.True(t, verdict.Fits, verdict.Text())
		}
	})
}
