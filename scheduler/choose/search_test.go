package choose

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
)

// drawCandidates are up to most cards in all sorts of use, of few sorts so that there are ties.
func drawCandidates(t *rapid.T, most int) []Candidate {
	small := rapid.IntRange(0, 3)
	sizes := rapid.IntRange(1, rapid.SampledFrom([]int{1, 2}).Draw(t, "sizes"))
	numa := rapid.IntRange(scheduler.NUMAUnknown, rapid.IntRange(scheduler.NUMAUnknown, 3).Draw(t, "numas"))
	candidates := make([]Candidate, rapid.IntRange(1, most).Draw(t, "cards"))
	for i := range candidates {
		size := sizes.Draw(t, "size")
		slots := small.Draw(t, "slots")
		candidates[i] = Candidate{
			Position: i, NUMA: numa.Draw(t, "numa"),
			Total: scheduler.Use{MemoryMiB: int64(size) * 40960, Cores: 100, Slots: 10},
			Used:  scheduler.Use{MemoryMiB: int64(slots) * 4096, Cores: 10 * slots, Slots: slots},
			Need:  scheduler.Use{MemoryMiB: 1024 * int64(1+small.Draw(t, "need")), Cores: 5, Slots: 1},
		}
	}
	return candidates
}

// drawLinks is a matrix for m cards: without structure, of few or many different links, or a tree,
// or with cards that are like others.
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
func TestCardsAreTheBestOfAllSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t, 12)
		links := drawLinks(t, len(candidates))
		if rapid.IntRange(0, 9).Draw(t, "no links") == 9 {
			links = nil
		}
		words := drawChain(t)
		p, err := ParseCardPolicy(words)
		require.NoError(t, err)
		w := Weights{rapid.Int64Range(0, 3).Draw(t, "slot"), rapid.Int64Range(0, 3).Draw(t, "core"), rapid.Int64Range(1, 3).Draw(t, "memory")}
		bind := rapid.Bool().Draw(t, "bind")
		n := rapid.IntRange(1, len(candidates)).Draw(t, "n")
		got := Cards(p.WithWeights(w).WithNUMABind(bind), candidates, links, n)
		require.Equal(t, oracle(words, w, bind, candidates, links, n), got)
	})
}
