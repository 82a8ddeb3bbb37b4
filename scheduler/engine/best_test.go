package engine

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestBest compares with the verdicts of all nodes, sorted.
func TestBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{NodePolicy: rapid.SampledFrom([]string{"binpack", "spread"}).Draw(t, "policy")})
		nodes := rapid.IntRange(0, 3*chunkSize).Draw(t, "nodes")
		for i := range nodes {
			e.SetNode(nodeOf(nodeName(i), h100s(i, rapid.IntRange(0, 2).Draw(t, "gpus"))...))
		}
		p := podOf("u", "1/30000/10")
		for i := range rapid.IntRange(0, 40).Draw(t, "pods") {
			other := podOf(fmt.Sprint("other", i), fmt.Sprintf("1/%d/10", 10000*rapid.IntRange(1, 7).Draw(t, "memory")))
			if rapid.IntRange(0, 9).Draw(t, "the pod itself") == 0 {
				other = p
			}
			_, _ = e.Reserve(other, requestOf(t, e, other), nodeName(rapid.IntRange(0, max(nodes-1, 0)).Draw(t, "node")), "test")
		}
		refused := map[string]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "refused") {
			refused[nodeName(rapid.IntRange(0, max(nodes-1, 0)).Draw(t, "node"))] = true
		}
		v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
		var want []string
		for _, name := range v.Nodes() {
			if verdict := v.Verdict(name); verdict.Fits && !refused[name] {
				want = append(want, name)
			}
		}
		slices.SortStableFunc(want, func(a, b string) int { return cmp.Compare(v.Verdict(b).Score, v.Verdict(a).Score) })
		n := rapid.OneOf(rapid.IntRange(1, 50), rapid.IntRange(1, nodes+1)).Draw(t, "n")
		if got := v.Best(n, func(node string) bool { return !refused[node] }); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("best %d are %v, and must be %v", n, got, want)
		}
	})
}

func TestBestOfNone(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("n", h100(0, 0)))
	p := annotated(podOf("u", "1/1000/0"), map[string]string{"hami.io/node-scheduler-policy": "binpack"})
	r := requestOf(t, e, p)
	all := func(string) bool { return true }
	require.Empty(t, e.Evaluate(e.Snapshot(), p, r).Best(0, all))
	r.Rules.NodePolicy, r.Signature = "x", "x"
	require.Empty(t, e.Evaluate(e.Snapshot(), p, r).Best(1, all), "an invalid policy")
}

// BenchmarkBest is the choice of the nodes that PreFilter names.
func BenchmarkBest(b *testing.B) {
	for _, nodes := range sizes {
		for name, n := range map[string]int{"32": 32, "all": nodes} {
			b.Run(fmt.Sprintf("nodes=%d/best=%s", nodes, name), func(b *testing.B) {
				e := cluster(b, nodes)
				p := podOf("u", "1/8000/10")
				v := e.Evaluate(e.Snapshot(), p, requestOf(b, e, p))
				each(b, func(int) {}, func(int) { v.Best(n, func(string) bool { return true }) })
			})
		}
	}
}
