//go:build root

package limiter_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// Memory that the host reports beyond the charges reduces what may still be charged, is shown as used, and is
// available again when the host reports less.
func TestResidueCounts(t *testing.T) {
	c := oneGPU(t, 1<<30)
	residue := func(bytes uint64) {
		require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{bytes}))
	}
	residue(1 << 20)
	lines, _ := c.probe(t, "init ctx 0 info alloc 1072693249 alloc 1072693248 alloc 1 nvml")
	require.Equal(t, []string{"init 0", "ctx 0", "info 0 free 1072693248 total 1073741824", "alloc 2", "alloc 0", "alloc 2"}, lines[:6])

	residue(2 << 30)
	lines, _ = c.probe(t, "init ctx 0 info alloc 1")
	require.Equal(t, []string{"init 0", "ctx 0", "info 0 free 0 total 1073741824", "alloc 2"}, lines, "more than all: nothing can be charged")

	residue(0)
	lines, _ = c.probe(t, "init ctx 0 alloc 1073741824 alloc 1")
	require.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
}
