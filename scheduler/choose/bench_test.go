package choose

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// How long a choice takes; none may allocate.
func BenchmarkGPUs(b *testing.B) {
	for _, bc := range []struct {
		policy string
		links  [][]int
		m, n   int
	}{
		{"spread", nil, 8, 1},
		{"binpack", nil, 8, 1},
		{"binpack", nil, 8, 4},
		{"numa,binpack", nil, 8, 1},
		{"numa,binpack", nil, 8, 4},
		{"topology-aware", dgx1V100(), 8, 1},
		{"topology-aware", dgx1V100(), 8, 4},
		{"topology-aware", twoSockets(8), 8, 2},
		{"topology-aware", nvSwitch(8, 18), 8, 4},
		{"topology-aware", fourSwitches(), 16, 8},
		{"tencent", sevenGPUs(), 7, 1},
		{"tencent", sevenGPUs(), 7, 2},
		{"tencent", sevenGPUs(), 7, 5},
		{"tencent", fourSwitches(), 16, 8},
	} {
		b.Run(fmt.Sprintf("%s/%d-of-%d", bc.policy, bc.n, bc.m), func(b *testing.B) {
			p, err := ParseGPUPolicy(bc.policy)
			require.NoError(b, err)
			candidates := idle(bc.m)
			for i := range candidates {
				candidates[i].Used.Replicas = i % 3
				candidates[i].Exclusive = true
			}
			var buffer [maxExact]int
			b.ReportAllocs()
			for b.Loop() {
				AppendGPUs(buffer[:0], p, candidates, bc.links, bc.n)
			}
		})
	}
}

// The worst case of the search, 8 GPUs of 16, beside a loop over all sets that does
// nothing but add up links from a table: brute/search is how much longer that takes.
func BenchmarkSearchAndBruteForce(b *testing.B) {
	p := GPUPolicy{keys: [maxKeys]key{keyTopology}}
	for name, links := range map[string][][]int{
		"uniform": nvSwitch(16, 18), "structured": fourSwitches(), "pairs": twoSockets(16),
		"random2": randomLinks(1, 16, 2), "random5": randomLinks(1, 16, 5), "random1000": randomLinks(1, 16, 1000),
	} {
		b.Run(name, func(b *testing.B) {
			candidates := idle(16)
			var buffer [maxExact]int
			var ours, brute time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				AppendGPUs(buffer[:0], p, candidates, links, 8)
				between := time.Now()
				bruteForce(links, 8)
				ours, brute = ours+between.Sub(start), brute+time.Since(between)
			}
			nodes, _ := searched(p, candidates, links, 8)
			b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "search-ns")
			b.ReportMetric(float64(brute.Nanoseconds())/float64(b.N), "brute-ns")
			b.ReportMetric(float64(brute)/float64(ours), "brute/search")
			b.ReportMetric(float64(nodes), "nodes")
		})
	}
}

// bruteForce is the first set of n of 16 GPUs with the best sum of links.
func bruteForce(links [][]int, n int) uint32 {
	var table [16][16]int32
	for i := range table {
		for j := range table {
			table[i][j] = int32(links[i][j])
		}
	}
	best, most := uint32(0), int32(-1)
	for set := uint32(1)<<n - 1; set < 1<<16; {
		sum := int32(0)
		for rest := set; rest != 0; {
			row := &table[bits.TrailingZeros32(rest)]
			rest &= rest - 1
			for others := rest; others != 0; others &= others - 1 {
				sum += row[bits.TrailingZeros32(others)&15]
			}
		}
		if sum > most {
			best, most = set, sum
		}
		low := set & -set // the next number with as many bits
		up := set + low
		set = up | (set^up)/low>>2
	}
	return best
}

func BenchmarkNode(b *testing.B) {
	after, total := usedNode(1, 2, 3, 4, 5, 6, 7, 8)
	for _, words := range []string{"binpack", "topology-aware,spread"} {
		b.Run(words, func(b *testing.B) {
			p, err := ParseNodePolicy(words)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				Node(p, Weights{1, 1, 3}, after, total, 30, 30, 50)
			}
		})
	}
}
