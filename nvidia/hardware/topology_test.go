package hardware

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLinkScores(t *testing.T) {
	topology := NewTopology([]string{"GPU-0", "GPU-1", "GPU-2"})
	topology.Set(0, 1, Pair{Level: LevelSwitch})
	topology.Set(1, 2, Pair{Level: LevelNode, NVLinks: 18})
	assert.Equal(t, 50, topology.Link("GPU-0", "GPU-1"))
	assert.Equal(t, 1820, topology.Link("GPU-2", "GPU-1"))
	assert.Equal(t, 10, topology.Link("GPU-0", "GPU-2"), "an unknown connection is the farthest")
	assert.Zero(t, topology.Link("GPU-0", "GPU-0"))
	assert.Zero(t, topology.Link("GPU-0", "GPU-none"))
	assert.Zero(t, Topology{}.Link("GPU-0", "GPU-1"))
}

func TestTopologyAsJSON(t *testing.T) {
	topology := NewTopology([]string{"GPU-0", "GPU-1", "GPU-2"})
	topology.Set(0, 1, Pair{Level: LevelNode, NVLinks: 4})
	text, err := json.Marshal(topology)
	require.NoError(t, err)
	require.Contains(t, string(text), `[{"level":"NODE","nvlinks":4},{"level":"SYS"},{"level":"SYS"}]`)
	var again Topology
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, topology, again)
	require.Equal(t, "SYS", Level(99).String())
	require.NoError(t, json.Unmarshal([]byte(`{"level":"QUX"}`), &Pair{}))
}

// A score has one pair.
func TestPairOf(t *testing.T) {
	for level := LevelSystem; level <= LevelBoard; level++ {
		for links := range 19 {
			p := Pair{Level: level, NVLinks: links}
			assert.Equal(t, p, PairOf(p.Score()))
		}
	}
	for _, score := range []int{-10, 0, 5, 70, 190} {
		assert.Zero(t, PairOf(score), score)
	}
}
