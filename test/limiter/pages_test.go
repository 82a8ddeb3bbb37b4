//go:build root

package limiter_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// requireWithin: the driver never gave the container more than the limit and a hundredth.
func requireWithin(t *testing.T, c *container, limit uint64) {
	t.Helper()
	peak, now := c.peakTotal(t)
	requirePeak(t, peak, limit+limit/100)
	assert.Zero(t, now)
	assert.Zero(t, c.used(t))
}

// Whatever size the pieces have, and whichever call gives them, a container that takes all it can get stays within its limit
// as the driver counts.
func TestPiecesOfAnySizeStayWithinTheLimit(t *testing.T) {
	const context, limit = 24 * miB, 512 * miB
	for kind, sizes := range map[string][]int{ // in KiB
		"alloc": {4, 512, 700, 1024, 1500, 2048, 2150, 3072, 65537}, "managed": {3072}, "pitch": {3072}, "async": {3072}, "vmm": {2048},
	} {
		for _, kib := range sizes {
			t.Run(fmt.Sprintf("%s of %d KiB", kind, kib), func(t *testing.T) {
				t.Parallel()
				c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit})
				lines, stderr := c.run(t, filepath.Join(built, "workloads", "alloc"), "--kind="+kind, fmt.Sprintf("--chunk-kib=%d", kib))
				assert.Contains(t, lines, "result=CUDA_ERROR_OUT_OF_MEMORY")
				assert.Empty(t, stderr)
				peak, _ := c.peakTotal(t)
				assert.Greater(t, peak, uint64(limit)*4/5, "the limit was never approached: the test tests nothing")
				requireWithin(t, c, limit)
			})
		}
	}
}

// What a context takes beside allocations counts too.
func TestGrowthOfAContextStaysWithinTheLimit(t *testing.T) {
	const context, limit = 24 * miB, 512 * miB
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit})
	lines, _ := c.probe(t, "init ctx 0 heap 268435456 alloc 268435456 alloc 203423744")
	assert.Equal(t, []string{"init 0", "ctx 0"}, lines[:2])
	requireWithin(t, c, limit)
}
