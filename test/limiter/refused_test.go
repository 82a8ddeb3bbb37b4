//go:build root

package limiter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// What the limit refuses is counted, once for each call, and what it grants at a second try
// is not.
func TestRefusedAllocationsAreCounted(t *testing.T) {
	const half = "536870912"
	for _, test := range []struct {
		name, script string
		over         bool // the node grants more than its GPUs have
		want         uint64
	}{
		{"none", "init ctx 0 alloc 1073741824 free 0 alloc 1073741824", false, 0},
		{"of each sort", "init ctx 0 alloc 1073741824 alloc 1 managed 1 pitch 100 10 vcreate 0 2", false, 4},
		{"a size that overflows", "init ctx 0 alloc 0xffffffffffffffff", false, 1},
		{"by the driver, without a context", "init alloc 4096", false, 0},
		{"what spills is not refused", "init ctx 0 alloc " + half + " alloc " + half, true, 0},
		{"what can't spill any more is, once", "init ctx 0 alloc " + half + " alloc " + half + " alloc 1", true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := oneGPU(t, 1<<30)
			if test.over {
				c = oversubscribed(t)
			}
			c.probe(t, test.script)
			assert.Equal(t, test.want, c.refused(t))
		})
	}
}

// Pools and graphs are refused too.
func TestRefusedPoolsAreCounted(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         uint64
	}{
		{"a pool", "async 1073741824 async 1", 1},
		{"a graph", "graph node 1073741825 inst 2 launch 0", 1},
		{"a graph that fits", "graph node 536870912 inst 2 launch 0", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := oneGPU(t, 1<<30)
			c.pools(t, "init ctx 0 "+test.script)
			assert.Equal(t, test.want, c.refused(t))
		})
	}
}

func (c *container) refused(t *testing.T) uint64 {
	t.Helper()
	u, err := limiter.ReadUsage(c.usage())
	require.NoError(t, err)
	return u.Devices[0].RefusedAllocations
}
