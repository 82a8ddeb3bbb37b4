package choose

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Pods' annotations: what is read can be decided by, and what is refused is none.
func FuzzParsePolicies(f *testing.F) {
	f.Add("numa,binpack", "topology-aware,spread", "slot=1,core=1,memory=3")
	f.Add("mutex,tencent", "", "slot=1000000,core=0,memory=0")
	f.Add("binpack,binpack , spread", "numa", "slot=1")
	f.Fuzz(func(t *testing.T, gpus, nodes, weights string) {
		if p, err := ParseGPUPolicy(gpus); err != nil {
			require.Equal(t, GPUPolicy{}, p)
		}
		if p, err := ParseNodePolicy(nodes); err != nil {
			require.Equal(t, NodePolicy{}, p)
		}
		w, err := ParseWeights(weights)
		for _, n := range []int64{w.Slot, w.Core, w.Memory} {
			require.True(t, n >= 0 && n <= maxWeight)
			require.True(t, err == nil || n == 0)
		}
	})
}
