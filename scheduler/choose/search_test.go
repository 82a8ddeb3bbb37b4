package choose

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
)

// drawCandidates are up to most GPUs in all sorts of use, of few sorts so that there are ties.
func drawCandidates(t *rapid.T, most int) []Candidate {
	small := rapid.IntRange(0, 3)
	sizes := rapid.IntRange(1, rapid.SampledFrom([]int{1, 2}).Draw(t, "sizes"))
	numa := rapid.IntRange(scheduler.NUMAUnknown, rapid.IntRange(scheduler.NUMAUnknown, 3).Draw(t, "numas"))
	candidates := make([]Candidate, rapid.IntRange(1, most).Draw(t, "gpus"))
	for i := range candidates {
		size := sizes.Draw(t, "size")
		replicas := small.Draw(t, "replicas")
		candidates[i] = Candidate{
			Position: i, NUMA: numa.Draw(t, "numa"),
			Total: scheduler.Use{MemoryMiB: int64(size) * 40960, Cores: 100, Replicas: 10},
			Used:  scheduler.Use{MemoryMiB: int64(replicas) * 4096, Cores: 10 * replicas, Replicas: replicas},
			Need:  scheduler.Use{MemoryMiB: 1024 * int64(1+small.Draw(t, "need")), Cores: 5, Replicas: 1},
		}
	}
	return candidates
}

// drawLinks is a matrix for m GPUs: without structure, of few or many different links, or a
// tree, or with GPUs that are like others.
func drawLinks(t *rapid.T, m int) [][]int {
	link := rapid.SampledFrom([]*rapid.Generator[int]{
		rapid.SampledFrom([]int{sys, pix}),
		rapid.SampledFrom([]int{sys, node, phb, pxb, pix}),
		rapid.SampledFrom([]int{sys, pix, sys + nv, phb + 2*nv, pix + 4*nv}),
		rapid.IntRange(0, 2000),
		rapid.Just(sys + 18*nv),
	}).Draw(t, "links")
	kinds := rapid.SliceOfN(rapid.IntRange(0, rapid.IntRange(0, 15).Draw(t, "kinds")), m, m).Draw(t, "kind")
	inner, outer := link.Draw(t, "inner"), map[[2]int]int{}
	return matrix(m, func(i, j int) int {
		a, b := min(kinds[i], kinds[j]), max(kinds[i], kinds[j])
		if a == b {
			return inner
		}
		if _, known := outer[[2]int{a, b}]; !known {
			outer[[2]int{a, b}] = link.Draw(t, "link")
		}
		return outer[[2]int{a, b}]
	})
}

func drawChain(t *rapid.T) string {
	return strings.Join(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{Binpack, Spread, Topology, NUMA, Mutex}), 1, 4, rapid.ID).Draw(t, "chain"), ",")
}

// Each chain of policies, on each kind of links, chooses what looking at all sets would.
func TestGPUsAreTheBestOfAllSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t, 12)
		links := drawLinks(t, len(candidates))
		if rapid.IntRange(0, 9).Draw(t, "no links") == 9 {
			links = nil
		}
		words := drawChain(t)
		p, err := ParseGPUPolicy(words)
		require.NoError(t, err)
		w := Weights{rapid.Int64Range(0, 3).Draw(t, "slot"), rapid.Int64Range(0, 3).Draw(t, "core"), rapid.Int64Range(1, 3).Draw(t, "memory")}
		bind := rapid.Bool().Draw(t, "bind")
		n := rapid.IntRange(1, len(candidates)).Draw(t, "n")
		got := GPUs(p.WithWeights(w).WithNUMABind(bind), candidates, links, n)
		require.Equal(t, oracle(words, w, bind, candidates, links, n), got)
	})
}

// Larger sets than rapid likes to draw, and links without any structure: the worst for the bound.
func TestGPUsAreTheBestOfAllSetsOfRandomLinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(9, 12).Draw(t, "gpus")
		n := rapid.IntRange(3, m-2).Draw(t, "n")
		links := randomLinks(rapid.Uint64().Draw(t, "seed"), m, rapid.SampledFrom([]int{2, 3, 5, 200}).Draw(t, "different"))
		candidates := idle(m)
		for i := range candidates {
			candidates[i].Used.Replicas = rapid.IntRange(0, 2).Draw(t, "replicas")
			candidates[i].NUMA = rapid.IntRange(0, 2).Draw(t, "numa")
		}
		words := rapid.SampledFrom([]string{"topology-aware", "topology-aware,binpack", "numa,topology-aware", "binpack,topology-aware", "binpack,numa,topology-aware"}).Draw(t, "policy")
		p, err := ParseGPUPolicy(words)
		require.NoError(t, err)
		require.Equal(t, oracle(words, Weights{1, 1, 1}, false, candidates, links, n), GPUs(p, candidates, links, n))
	})
}

// What the search finds is right, and how much it looks at stays small: for machines that exist
// hardly more than a look at each GPU, for graphs that are built to look the same everywhere a
// part of the sets that there are (12870 of 8 out of 16).
func TestSearchOnMachinesAndOnWorseThanMachines(t *testing.T) {
	strange := func(linked func(difference int) bool) [][]int { // GPUs are the corners of a cube of four dimensions
		return matrix(16, func(i, j int) int {
			if linked(i ^ j) {
				return pix
			}
			return sys
		})
	}
	for _, tc := range []struct {
		name  string
		links [][]int
		most  int // nodes
	}{
		{"seven GPUs on two switches", sevenGPUs(), 25},
		{"one GPU and a pair", lonelyFirst(), 10},
		{"NVSwitch, 8 GPUs", nvSwitch(8, 18), 0},
		{"NVSwitch, 16 GPUs", nvSwitch(16, 12), 0},
		{"DGX-1 V100", dgx1V100(), 40},
		{"8 GPUs in pairs, two sockets", twoSockets(8), 50},
		{"16 GPUs in pairs, two sockets", twoSockets(16), 300},
		{"16 GPUs on four switches", fourSwitches(), 300},
		{"random, two different links", randomLinks(1, 16, 2), 1000},
		{"random, five different links", randomLinks(1, 16, 5), 1000},
		{"random, many different links", randomLinks(1, 16, 1000), 1000},
		{"ring", matrix(16, func(i, j int) int { return sys * min(i-j, 16-i+j) }), 5000},
		{"cube", strange(func(d int) bool { return d&(d-1) == 0 }), 5000},
		{"Clebsch graph", strange(func(d int) bool { return d&(d-1) == 0 || d == 15 }), 5000},
		{"Clebsch graph, the other way", strange(func(d int) bool { return d&(d-1) != 0 && d != 15 }), 5000},
		{"rook's graph", matrix(16, func(i, j int) int {
			if i/4 == j/4 || i%4 == j%4 {
				return pix
			}
			return sys
		}), 5000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, p := len(tc.links), GPUPolicy{keys: [maxKeys]key{keyTopology}}
			most := 0
			for n := 2; n < m; n++ {
				nodes, chosen := searched(p, idle(m), tc.links, n)
				most = max(most, nodes)
				if m < 16 || n <= 4 || n == 8 {
					require.Equal(t, oracle(Topology, Weights{1, 1, 1}, false, idle(m), tc.links, n), chosen, "%d GPUs", n)
				}
			}
			t.Logf("%d nodes at most", most)
			require.LessOrEqual(t, most, tc.most, "nodes")
		})
	}
}

// searched is GPUs of all candidates, and how many nodes the search looked at.
func searched(p GPUPolicy, candidates []Candidate, links [][]int, n int) (nodes int, chosen []int) {
	q := selection{policy: p.orDefault(), candidates: candidates, links: links, n: n}
	for i := range candidates {
		q.pool = append(q.pool, i)
	}
	if g := q.goals(); !g.linear() {
		var s search
		s.setUp(&q, q.pool, g)
		s.run()
		nodes = s.nodes
	}
	return nodes, GPUs(p, candidates, links, n)
}
