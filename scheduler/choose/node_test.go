package choose

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
)

// usedNode is a node with GPUs of which so many tenths are used.
func usedNode(tenths ...int) (after, total []scheduler.Use) {
	for _, x := range tenths {
		after = append(after, busy(x, 0).Used)
		total = append(total, busy(x, 0).Total)
	}
	return after, total
}

func TestNode(t *testing.T) {
	score := func(policy string, w Weights, links []int, tenths ...int) int64 {
		p, err := ParseNodePolicy(policy)
		require.NoError(t, err)
		after, total := usedNode(tenths...)
		return Node(p, w, after, total, links...)
	}
	require.EqualValues(t, 2500, score("", Weights{}, nil, 0, 5), "binpack is the default")
	require.EqualValues(t, MaxNodeScore, score("binpack", Weights{1, 1, 3}, nil, 10, 10))
	require.EqualValues(t, 0, score("spread", Weights{}, nil, 10, 10))
	require.EqualValues(t, MaxNodeScore, score("spread", Weights{}, nil, 0, 0))
	require.EqualValues(t, 0, score("binpack", Weights{}, nil), "a node without GPUs")
	require.Greater(t, score("spread", Weights{}, nil, 1, 0, 0, 0), score("spread", Weights{}, nil, 1, 0), "the larger of two empty nodes")
	require.Greater(t, score("spread", Weights{}, nil, 1, 0), score("spread", Weights{}, nil, 1, 1, 1, 0), "until the smaller one is used less")
	require.Greater(t, score("binpack", Weights{}, nil, 1, 0), score("binpack", Weights{}, nil, 1, 0, 0, 0))

	// Links are PCIe's up to half of the scale, then NVLink's.
	pair := func(links ...int) int64 { return score(Topology, Weights{}, links, 1, 1) }
	require.Less(t, pair(sys), pair(node))
	require.Less(t, pair(pxb), pair(pix))
	require.Less(t, pair(pix), pair(sys+4*nv))
	require.Less(t, pair(sys+12*nv), pair(sys+18*nv))
	require.Less(t, pair(pix, sys, sys), pair(phb, phb, phb))
	require.EqualValues(t, MaxNodeScore-1, score(Topology, Weights{}, []int{1860}, 1), "two digits of a hundred")

	require.Greater(t, score(Topology, Weights{}, nil, 1), score(Topology, Weights{}, nil, 1, 0), "the smallest node that will do")
	require.Greater(t, score(Topology, Weights{}, nil, 5, 5, 1), score(Topology, Weights{}, nil, 5, 1, 0))
	require.Greater(t, score("topology-aware,spread", Weights{}, []int{pix}, 1, 1), score("topology-aware,spread", Weights{}, []int{pix}, 5, 5))
	require.Greater(t, score("topology-aware,spread", Weights{}, []int{pix}, 5, 5), score("topology-aware,spread", Weights{}, []int{sys}, 1, 1))
	require.Greater(t, score("spread,topology-aware", Weights{}, []int{sys}, 1, 1), score("spread,topology-aware", Weights{}, []int{pix}, 5, 5))
}

// More on a node is never better for spread, nor worse for binpack; scores are in their range.
func TestNodeScoresAreInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Weights{rapid.Int64Range(0, maxWeight).Draw(t, "slot"), rapid.Int64Range(0, maxWeight).Draw(t, "core"), rapid.Int64Range(1, maxWeight).Draw(t, "memory")}
		tenths := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 16).Draw(t, "used")
		links := rapid.SliceOfN(rapid.Int(), 0, 6).Draw(t, "links")
		for _, words := range []string{"binpack", "spread", "topology-aware", "topology-aware,binpack", "spread,binpack,topology-aware"} {
			p, err := ParseNodePolicy(words)
			require.NoError(t, err)
			after, total := usedNode(tenths...)
			before := Node(p, w, after, total, links...)
			after[0] = after[0].Add(scheduler.Use{MemoryMiB: 8192, Cores: 10, Replicas: 1})
			now := Node(p, w, after, total, links...)
			for _, s := range []int64{before, now} {
				require.GreaterOrEqual(t, s, int64(0))
				require.LessOrEqual(t, s, int64(MaxNodeScore))
			}
			switch words {
			case "binpack":
				require.GreaterOrEqual(t, now, before)
			case "spread":
				require.LessOrEqual(t, now, before)
			}
		}
	})
}
