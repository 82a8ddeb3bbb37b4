package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// pendingOf is the one pod that waits.
func pendingOf(t *testing.T, e *Engine) Pending {
	t.Helper()
	pods, total := e.Pending(10)
	require.Len(t, pods, 1)
	require.Equal(t, 1, total)
	return pods[0]
}

// A pod is pending until it is bound or deleted; one that requests nothing never is.
func TestPendingComesAndGoes(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	none := func() {
		t.Helper()
		pods, total := e.Pending(10)
		assert.Empty(t, pods)
		assert.Zero(t, total)
		assert.Empty(t, e.PendingCounts().ByReason)
	}
	e.SetPod(podOf("none", "0/0/0"))
	none()
	for description, end := range map[string]func(*scheduler.Pod){
		"bound":            func(p *scheduler.Pod) { e.SetPod(place(t, e, p, "a")); none(); e.DeletePod(p.UID) },
		"bound by another": func(p *scheduler.Pod) { e.SetPod(bindTo(p, "b")) },
		"gone":             func(p *scheduler.Pod) { e.DeletePod(p.UID) },
		"ended":            func(p *scheduler.Pod) { ended := *p; ended.Ended = true; e.SetPod(&ended) },
	} {
		p := podOf("u", "1/8000/30")
		e.SetPod(p)
		assert.Equal(t, "ns/pod-u", pendingOf(t, e).Pod, description)
		end(p)
		none()
	}
}

func TestPendingReasons(t *testing.T) {
	for _, test := range []struct {
		description string
		pod         *scheduler.Pod
		reserve     bool
		reason      string
		text        string
	}{
		{"it fits: it is tried", podOf("u", "1/8000/30"), false, PendingFits, "it fits: it is tried"},
		{"it has its GPUs", podOf("u", "1/8000/30"), true, PendingReserved, "GPUs of node a are reserved"},
		{"too much memory", podOf("u", "1/90000/30"), false, "CardInsufficientMemory", "0 of 1 node with GPUs fit: 1: GPUs have too little free memory. For example a: 2 GPUs: 2 with less than 90000 MiB free (most: 80000 MiB)"},
		{"too many GPUs", podOf("u", "3/8000/30"), false, "NodeInsufficientDevice", "the node has too few GPUs"},
		{"not allowed", podOf("u", "1/8000/101"), false, PendingBadRequest, "101"},
	} {
		e := newEngine(t, Options{})
		e.SetNode(nodeOf("a", h100s(0, 2)...))
		e.SetPod(test.pod)
		if test.reserve {
			place(t, e, test.pod, "a")
		}
		p := pendingOf(t, e)
		assert.Equal(t, test.reason, p.Reason, test.description)
		assert.Contains(t, p.Text, test.text, test.description)
		assert.Equal(t, map[string]int{test.reason: 1}, e.PendingCounts().ByReason, test.description)
	}
	e := newEngine(t, Options{})
	e.SetPod(podOf("u", "1/8000/30"))
	assert.Equal(t, "no node has GPUs registered", pendingOf(t, e).Text)
	assert.Equal(t, map[string]int{"NodeUnregistered": 1}, e.PendingCounts().ByReason)
}

// Fragmented is memory that is there, only not on one GPU (or on as many as are wanted).
func TestPendingFragmented(t *testing.T) {
	cordoned, ill, full := h100(0, 1), h100(0, 1), h100(0, 1)
	cordoned.Cordoned, ill.Healthy, full.Replicas = true, false, 1
	for _, test := range []struct {
		description string
		second      scheduler.GPU
		reserved    string // on each GPU
		pod         *scheduler.Pod
		want        bool
	}{
		{"half of two GPUs", h100(0, 1), "1/40000/10", podOf("u", "1/60000/10"), true},
		{"by percent", h100(0, 1), "1/40000/10", podOf("u", "1/-75/10"), true},
		{"more than a GPU has in all", h100(0, 1), "1/1000/10", podOf("u", "1/90000/10"), false},
		{"more than both have", h100(0, 1), "1/60000/10", podOf("u", "1/60000/10"), false},
		{"two of them", h100(0, 1), "1/40000/10", podOf("u", "2/60000/10"), false},
		{"init containers come before", h100(0, 1), "1/40000/10", podOf("u", "i1/60000/10", "i1/60000/10", "1/1000/0"), true},
		{"sidecars run along", h100(0, 1), "1/40000/10", podOf("u", "s1/50000/10", "1/50000/10"), false},
		{"what is cordoned isn't free", cordoned, "1/40000/10", podOf("u", "1/60000/10"), false},
		{"what is ill isn't free", ill, "1/40000/10", podOf("u", "1/60000/10"), false},
		{"what has no replica isn't free", full, "1/40000/10", podOf("u", "1/60000/10"), false},
	} {
		e := newEngine(t, Options{})
		e.SetNode(nodeOf("a", h100s(0, 2)...))
		for i := range 2 { // one on each GPU: the second container is the bit that lets no two on one
			e.SetPod(place(t, e, podOf(fmt.Sprintf("b%d", i), test.reserved, "1/1/0"), "a"))
		}
		e.SetNode(nodeOf("a", h100(0, 0), test.second))
		e.SetPod(test.pod)
		p := pendingOf(t, e)
		require.Equal(t, "CardInsufficientMemory", p.Reason, test.description)
		assert.Equal(t, test.want, p.Fragmented, test.description)
		assert.Equal(t, test.want, e.PendingCounts().Fragmented == 1, test.description)
	}
}

func TestPendingOrderAndMost(t *testing.T) {
	e := newEngine(t, Options{})
	for i, uid := range []string{"c", "a", "b"} {
		p := podOf(uid, "1/8000/30")
		p.Created = time.Unix(int64(100-i), 0)
		e.SetPod(p)
	}
	pods, total := e.Pending(2)
	assert.Equal(t, 3, total)
	require.Len(t, pods, 2)
	assert.Equal(t, []string{"b", "a"}, []string{pods[0].UID, pods[1].UID}, "the oldest first")
}

// However many pods wait, a scrape judges only so many sorts of them.
func TestPendingCountsAreBounded(t *testing.T) {
	e := newEngine(t, Options{})
	const nodes, more = 10_000, 20
	const most = maxEvaluated / nodes
	for i := range nodes {
		e.SetNode(nodeOf(nodeName(i), h100(i, 0)))
	}
	for i := range most + more {
		e.SetPod(podOf(fmt.Sprint("a", i), "1/100000/1")) // all of one kind, and evaluated first
		e.SetPod(podOf(fmt.Sprint("b", i), fmt.Sprintf("1/%d/0", 100001+i)))
	}
	assert.Equal(t, map[string]int{"CardInsufficientMemory": most + more + most - 1, PendingNotEvaluated: more + 1}, e.PendingCounts().ByReason)
}

// TestReportsLeaveTheCache: the requests that are being scheduled stay evaluated, however many others wait.
func TestReportsLeaveTheCache(t *testing.T) {
	e := newEngine(t, Options{Signatures: 2})
	e.SetNode(nodeOf("n", h100(0, 0)))
	scheduled := podOf("scheduled", "1/1000/0")
	r := requestOf(t, e, scheduled)
	e.Evaluate(e.Snapshot(), scheduled, r)
	entry := e.verdicts.peek(r.Signature)
	require.NotNil(t, entry)
	for i := range 10 {
		e.SetPod(podOf(fmt.Sprint("waits", i), fmt.Sprintf("1/%d/0", 100000+i)))
	}
	assert.Equal(t, 10, e.PendingCounts().ByReason["CardInsufficientMemory"])
	pods, _ := e.Pending(10)
	assert.Len(t, pods, 10)
	assert.Same(t, entry, e.verdicts.peek(r.Signature))
	assert.Len(t, e.verdicts.entries, 1)
}

// BenchmarkPendingCounts is a scrape while 1,000 pods of 20 sorts wait on a full cluster of 1,000 nodes.
func BenchmarkPendingCounts(b *testing.B) {
	e := cluster(b, 1000)
	for i := range 1000 {
		e.SetPod(podOf(fmt.Sprint("w", i), fmt.Sprintf("1/%d/0", 90000+i%20)))
	}
	b.ResetTimer()
	for b.Loop() {
		if n := e.PendingCounts().ByReason["CardInsufficientMemory"]; n != 1000 {
			b.Fatal(n)
		}
	}
}
