package choose

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// busy is a GPU of 80 GiB of which so many tenths are used, on a NUMA node.
func busy(tenths, numa int) Candidate {
	return Candidate{
		NUMA:  numa,
		Total: scheduler.Use{MemoryMiB: 81920, Cores: 100, Replicas: 10},
		Used:  scheduler.Use{MemoryMiB: int64(tenths) * 8192, Cores: tenths * 10, Replicas: tenths},
		Need:  scheduler.Use{MemoryMiB: 8192, Cores: 10, Replicas: 1},
	}
}

func TestGPUs(t *testing.T) {
	const unknown = scheduler.NUMAUnknown
	mixed := []Candidate{busy(2, 0), busy(0, 0), busy(5, 1), busy(0, 1), busy(2, 1)}
	// GPU0-3 and GPU4-7 on their sockets, in pairs; the first pair and GPU4 are used.
	sockets := []Candidate{busy(1, 0), busy(1, 0), busy(0, 0), busy(0, 0), busy(1, 1), busy(0, 1), busy(0, 1), busy(0, 1)}
	for _, tc := range []struct {
		name       string
		policy     string
		bind       bool
		candidates []Candidate
		links      [][]int
		n          int
		want       []int
	}{
		{"spread is the default: the least used", "", false, mixed, nil, 1, []int{1}},
		{"spread, several", "spread", false, mixed, nil, 3, []int{0, 1, 3}},
		{"binpack: the most used", "binpack", false, mixed, nil, 1, []int{2}},
		{"binpack, several", "binpack", false, mixed, nil, 2, []int{0, 2}},
		{"all", "binpack", false, mixed, nil, 5, []int{0, 1, 2, 3, 4}},
		{"none", "binpack", false, mixed, nil, 0, nil},
		{"more than there are", "binpack", false, mixed, nil, 6, nil},
		{"a number that makes no sense", "binpack", false, mixed, nil, -1, nil},

		{"numa: the node with fewer free GPUs", "numa", false, mixed, nil, 1, []int{1}},
		{"numa: three fit on one node only", "numa", false, mixed, nil, 3, []int{2, 3, 4}},
		{"numa, then binpack", "numa,binpack", false, mixed, nil, 1, []int{0}},
		{"binpack, then numa", "binpack,numa", false, mixed, nil, 2, []int{2, 4}}, // 0 is used as much as 4, which is on 2's node
		{"numa: as few nodes as possible", "numa", false, mixed, nil, 4, []int{0, 1, 3, 4}},

		{"numa-bind: spread within one node", "spread", true, mixed, nil, 2, []int{0, 1}},
		{"numa-bind: binpack within one node", "binpack", true, mixed, nil, 2, []int{2, 4}},
		{"numa-bind: no node has as many", "spread", true, mixed, nil, 4, nil},
		{"numa-bind: GPUs of unknown nodes are one group", "spread", true, []Candidate{busy(0, 0), busy(0, unknown), busy(0, 1), busy(0, unknown)}, nil, 2, []int{1, 3}},
		{"numa-bind: of equal ones the smallest node that will do", "spread", true,
			[]Candidate{busy(0, 0), busy(0, 0), busy(0, 0), busy(0, 1), busy(0, 1)}, nil, 2, []int{3, 4}},
		{"numa-bind does not apply to one GPU", "binpack", true, mixed, nil, 1, []int{2}},

		{"mutex: only unused GPUs", "mutex", false, mixed, nil, 2, []int{1, 3}},
		{"mutex: not enough of them", "mutex", false, mixed, nil, 3, nil},
		{"mutex and numa-bind", "mutex", true, mixed, nil, 2, nil},
		{"mutex among binpack", "binpack,mutex", false, mixed, nil, 1, []int{1}},

		{"topology-aware: the pair with the best link; of equal ones the least used", "topology-aware", false, sockets, twoSockets(8), 2, []int{2, 3}},
		{"topology-aware, then binpack", "topology-aware,binpack", false, sockets, twoSockets(8), 2, []int{0, 1}},
		{"topology-aware: a socket", "topology-aware", false, sockets, twoSockets(8), 4, []int{4, 5, 6, 7}},
		{"binpack, then topology-aware: the most used, of those the pair", "binpack,topology-aware", false, sockets, twoSockets(8), 2, []int{0, 1}},
		{"topology-aware, one GPU: the one that is missed least", "topology-aware", false, sockets[:3], lonelyFirst(), 1, []int{0}},
		{"topology-aware, NVSwitch: all the same, so the least used", "topology-aware", false, sockets, nvSwitch(8, 18), 3, []int{2, 3, 5}},
		{"topology-aware, no links: the chain goes on", "topology-aware,binpack", false, sockets, nil, 1, []int{0}},
		{"topology-aware and mutex", "mutex,topology-aware", false, sockets, twoSockets(8), 3, []int{5, 6, 7}},
		{"topology-aware and numa-bind", "topology-aware", true, sockets, nvSwitch(8, 18), 2, []int{2, 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := ParseGPUPolicy(tc.policy)
			require.NoError(t, err)
			candidates := append([]Candidate(nil), tc.candidates...)
			for i := range candidates {
				candidates[i].Position = i
			}
			require.Equal(t, tc.want, GPUs(p.WithNUMABind(tc.bind), candidates, tc.links, tc.n))
		})
	}
}

// HAMi's score leaves out the container's request, so a container of 30 GiB goes, with
// binpack, to a GPU of 80 GiB of which 20 are used rather than to one of 40 GiB that it would
// fill.
func TestScoreIncludesTheRequest(t *testing.T) {
	large, small := busy(0, 0), busy(0, 0)
	large.Used.MemoryMiB, small.Total.MemoryMiB, small.Used.MemoryMiB = 20480, 40960, 8192
	large.Need.MemoryMiB, small.Need.MemoryMiB = 30720, 30720
	p, err := ParseGPUPolicy(Binpack)
	require.NoError(t, err)
	require.Equal(t, []int{1}, GPUs(p.WithWeights(Weights{Memory: 1}), []Candidate{large, small}, nil, 1))
}

func TestWeights(t *testing.T) {
	memory, cores := busy(0, 0), busy(0, 0)
	memory.Used.MemoryMiB, cores.Used.Cores = 40960, 60
	for w, want := range map[Weights]int{{}: 0, {1, 1, 3}: 1, {0, 1, 0}: 0, {0, 0, 1}: 1} {
		require.Equal(t, []int{want}, GPUs(GPUPolicy{}.WithWeights(w), []Candidate{memory, cores}, nil, 1), w)
	}
}

// Whatever a node claims of its GPUs: an answer, always the same.
func TestGPUsOfNonsense(t *testing.T) {
	huge := scheduler.Use{MemoryMiB: math.MaxInt64, Cores: math.MaxInt, Replicas: math.MaxInt}
	candidates := []Candidate{{}, {Total: huge}, {Used: huge, Total: huge}, {Used: scheduler.Use{MemoryMiB: -5, Cores: -5, Replicas: -5}, Position: -1, NUMA: -7}, {Position: 99}}
	links := [][]int{{0, math.MaxInt, -5}, nil, {math.MinInt, 3}}
	for _, words := range []string{"binpack", "spread", "topology-aware", "numa", "tencent", "numa,topology-aware"} {
		p, err := ParseGPUPolicy(words)
		require.NoError(t, err)
		for n := 1; n <= len(candidates); n++ {
			chosen := GPUs(p.WithWeights(Weights{maxWeight, maxWeight, maxWeight}), candidates, links, n)
			require.Len(t, chosen, n)
			require.Equal(t, chosen, GPUs(p.WithWeights(Weights{maxWeight, maxWeight, maxWeight}), candidates, links, n))
		}
	}
}

// Links are reported by nodes: one that reports one direction only, or claims more than there
// can be, gets a GPU, and not one that is worse for it.
func TestInvalidLinks(t *testing.T) {
	p, err := ParseGPUPolicy(Topology)
	require.NoError(t, err)
	oneWay := [][]int{{0, 60, sys}, {0, 0, sys}, {sys, sys, 0}}
	require.Equal(t, []int{0, 2}, GPUs(p, idle(3), oneWay, 2))
	huge := [][]int{{0, pix, pix}, {pix, 0, 1 << 40}, {pix, 1 << 40, 0}}
	require.Equal(t, []int{1, 2}, GPUs(p, idle(3), huge, 2))
}

// More GPUs than the exact search takes.
func TestManyGPUs(t *testing.T) {
	// 32 GPUs, four on each switch, 16 on each socket.
	links := matrix(32, func(i, j int) int {
		switch {
		case i/4 == j/4:
			return pix
		case i/16 == j/16:
			return phb
		}
		return sys
	})
	candidates := idle(32)
	for i := range candidates {
		candidates[i].Exclusive = true
		if i < 6 {
			candidates[i].Used.Replicas = 1
		}
	}
	for _, tc := range []struct {
		policy string
		n      int
		want   []int
	}{
		{"spread", 2, []int{6, 7}},
		{"binpack", 7, []int{0, 1, 2, 3, 4, 5, 6}},
		{"topology-aware", 1, []int{6}},
		{"topology-aware", 4, []int{8, 9, 10, 11}},
		{"topology-aware,binpack", 8, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"topology-aware,mutex", 2, []int{6, 7}},
		{"tencent", 3, []int{0, 1, 2}},
		{"numa,binpack", 12, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
	} {
		p, err := ParseGPUPolicy(tc.policy)
		require.NoError(t, err)
		for _, bind := range []bool{false, true} {
			got := GPUs(p.WithNUMABind(bind), candidates, links, tc.n)
			require.Equal(t, tc.want, got, "%s, %d GPUs, numa-bind %v", tc.policy, tc.n, bind)
		}
	}
	require.Nil(t, GPUs(GPUPolicy{}.WithNUMABind(true), candidates, links, 17))
	require.Len(t, GPUs(GPUPolicy{}, idle(100), nil, 70), 70)
}

// No exchange of one GPU for another makes a set of many better.
func TestManyGPUsCannotBeExchangedForBetter(t *testing.T) {
	p, err := ParseGPUPolicy("topology-aware,binpack")
	require.NoError(t, err)
	for seed := range uint64(100) {
		links, candidates, pool := randomLinks(seed, 18, 1000), idle(18), uint(1)<<18-1
		value := func(set uint) []int64 {
			return valueOf([]string{Topology, Binpack}, Weights{1, 1, 1}, candidates, links, set, pool)
		}
		set := uint(0)
		for _, i := range GPUs(p, candidates, links, 9) {
			set |= 1 << i
		}
		for i := range candidates {
			for j := range candidates {
				if set>>i&1 == 1 && set>>j&1 == 0 {
					require.LessOrEqual(t, slices.Compare(value(set&^(1<<i)|1<<j), value(set)), 0, "%d for %d", j, i)
				}
			}
		}
	}
}

func TestGPUsAllocateNothing(t *testing.T) {
	var buffer [maxExact]int
	for _, words := range []string{"spread", "binpack", "numa", "mutex", "topology-aware", "tencent", "numa,topology-aware,binpack"} {
		p, err := ParseGPUPolicy(words)
		require.NoError(t, err)
		for _, bind := range []bool{false, true} {
			p := p.WithNUMABind(bind)
			for n := 1; n <= 8; n++ {
				candidates, links := idle(16), fourSwitches()
				require.Zero(t, testing.AllocsPerRun(10, func() { AppendGPUs(buffer[:0], p, candidates, links, n) }), "%s, %d GPUs, numa-bind %v", words, n, bind)
			}
		}
	}
}

// GPUs is AppendGPUs without a buffer; nil if there is no set.
func GPUs(p GPUPolicy, candidates []Candidate, links [][]int, n int) []int {
	chosen, ok := AppendGPUs(nil, p, candidates, links, n)
	if !ok {
		return nil
	}
	return chosen
}
