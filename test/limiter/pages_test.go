//go:build root

package limiter_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
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
				c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(t)
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

// Pieces of many sizes are allocated and freed in any order, so that pages are shared by any of them.
func TestMixedPiecesStayWithinTheLimit(t *testing.T) {
	const limit = 256 * miB
	for _, largest := range []int{40 * kiB, 900 * kiB, miB, 3 * miB} {
		t.Run(fmt.Sprintf("up to %d KiB", largest/kiB), func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, newMachine(t, "H200:context_mib=0"), gpu{gpuIDs[0], limit}).inPages(t)
			var all sync.WaitGroup
			for i := range 4 {
				all.Add(1)
				go func() {
					defer all.Done()
					out, err := c.command(filepath.Join(bin, "churn"), "2", fmt.Sprint(i), fmt.Sprint(largest), "4").CombinedOutput()
					assert.NoError(t, err, "%s", out)
				}()
			}
			all.Wait()
			peak, _ := c.peak(t)
			requirePeak(t, peak, limit)
			assert.Zero(t, c.used(t))
			lines, _ := c.probe(t, fmt.Sprintf("init ctx 0 alloc %d alloc 1", limit))
			assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
		})
	}
}

// Small allocations count as the pages that they are in, and no more.
func TestSmallPieces(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"share a page", "alloc 4096 alloc 4096 alloc 1048576 info free 0 free 1 info free 2 info",
			[]string{"alloc 0", "alloc 0", "alloc 0", "info 0 free 1071644672 total 1073741824", "free 0", "free 0",
				"info 0 free 1071644672 total 1073741824", "free 0", "info 0 free 1073741824 total 1073741824"}},
		{"two to a page", "alloc 716800 alloc 716800 info alloc 716800 info free 0 free 1 free 2 info",
			[]string{"alloc 0", "alloc 0", "info 0 free 1071644672 total 1073741824", "alloc 0", "info 0 free 1069547520 total 1073741824",
				"free 0", "free 0", "free 0", "info 0 free 1073741824 total 1073741824"}},
		{"fill the last page", "alloc 1071644672 alloc 1048576 alloc 1048576 alloc 512",
			[]string{"alloc 0", "alloc 0", "alloc 0", "alloc 2"}},
		{"above a MiB is no piece", "alloc 1048577 alloc 1048577 info", []string{"alloc 0", "alloc 0", "info 0 free 1069547520 total 1073741824"}},
		{"end with their context", "newctx 0 alloc 4096 alloc 4096 newctx ctx 0 info alloc 1073741824",
			[]string{"newctx 0", "alloc 0", "alloc 0", "destroy 0", "ctx 0", "info 0 free 1073741824 total 1073741824", "alloc 0"}},
		{"contexts do not share", "alloc 4096 newctx 0 alloc 4096 info", []string{"alloc 0", "newctx 0", "alloc 0", "info 0 free 1069547520 total 1073741824"}},
		{"of a pitch", "pitch 100 10 pitch 2000 2000 info free 0 free 1 info",
			[]string{"pitch 512  0", "pitch 2048  0", "info 0 free 1067450368 total 1073741824", "free 0", "free 0", "info 0 free 1073741824 total 1073741824"}},
		{"a refused one leaves nothing", "alloc 1073741824 alloc 4096 free 0 info", []string{"alloc 0", "alloc 2", "free 0", "info 0 free 1073741824 total 1073741824"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, newMachine(t, "H200:context_mib=0"), gpu{gpuIDs[0], giB}).inPages(t)
			lines, stderr := c.probe(t, "init ctx 0 "+test.script)
			assert.Equal(t, append([]string{"init 0", "ctx 0"}, test.want...), lines)
			assert.Empty(t, stderr)
			peak, now := c.peak(t)
			assert.LessOrEqual(t, peak, uint64(giB))
			assert.Zero(t, now)
			assert.Zero(t, c.used(t))
		})
	}
}

// The heap of kernels is charged before the driver takes it, at a launch that no call of the program shows. What the code of
// malloc takes is residue: here the host has measured it.
func TestGrowthOfAContextStaysWithinTheLimit(t *testing.T) {
	const context, limit, code = 24 * miB, 768 * miB, 138 * miB
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(t)
	require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{code}))
	lines, stderr := c.probe(t, fmt.Sprintf("init ctx 0 heap 268435456 alloc %d alloc %d malloc heap 536870912", limit-context-code-258*miB+1, limit-context-code-258*miB))
	assert.Equal(t, []string{"init 0", "ctx 0", "heap 0", "alloc 2", "alloc 0", "malloc 0", "heap 2"}, lines)
	assert.Empty(t, stderr)
	peak, _ := c.peakTotal(t)
	assert.EqualValues(t, limit, peak)
	require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{0}))
	requireWithin(t, c, limit)
}

// What a program sets the limits of a context to is charged before the driver takes it, until it is set back or the context
// ends.
func TestGrowthOfAContextIsCharged(t *testing.T) {
	const context, limit = 24 * miB, 512 * miB
	free := func(bytes int) string { return fmt.Sprintf("info 0 free %d total %d", bytes, limit) }
	const after = limit - context
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"the heap, and back", "ctx 0 heap 268435456 info heap 134217729 info heap 8388608 info",
			[]string{"ctx 0", "heap 0", free(after - 258*miB), "heap 0", free(after - 132*miB), "heap 0", free(after)}},
		{"one that is too large", "ctx 0 heap 134217728 heap 536870912 info alloc 375390209 alloc 375390208",
			[]string{"ctx 0", "heap 0", "heap 2", free(after - 130*miB), "alloc 2", "alloc 0"}},
		{"stacks of all threads", "ctx 0 stack 2048 info stack 4096 info stack 1024 info",
			[]string{"ctx 0", "stack 0", free(after - 264*miB), "stack 2", free(after - 264*miB), "stack 0", free(after)}},
		{"below what a new one has", "ctx 0 heap 1048576 stack 512 info", []string{"ctx 0", "heap 0", "stack 0", free(after)}},
		{"what the driver refuses", "ctx 0 stack 1048576 info stack 2048 stack 1048576 info",
			[]string{"ctx 0", "stack 2", free(after), "stack 0", "stack 2", free(after - 264*miB)}},
		{"ends at a reset", "ctx 0 heap 268435456 reset 0 ctx 0 info heap 268435456 info",
			[]string{"ctx 0", "heap 0", "reset 0", "ctx 0", free(after), "heap 0", free(after - 258*miB)}},
		{"ends with a context", "newctx 0 heap 268435456 stack 1536 info newctx ctx 0 info",
			[]string{"newctx 0", "heap 0", "stack 0", free(after - 258*miB - 132*miB), "destroy 0", "ctx 0", free(after)}},
		{"each context its own", "ctx 0 heap 134217728 newctx 0 heap 134217728 info", []string{"ctx 0", "heap 0", "newctx 0", "heap 0",
			free(limit - 2*context - 260*miB)}},
		{"without a context", "heap 268435456", []string{"heap 201"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(t)
			lines, stderr := c.probe(t, "init "+test.script)
			assert.Equal(t, append([]string{"init 0"}, test.want...), lines)
			assert.Empty(t, stderr)
			requireWithin(t, c, limit)
		})
	}
}

// A green context is the primary one with some of the multiprocessors: what is allocated in it, and what it grows by, is
// the primary one's, and ends with that.
func TestMemoryOfGreenContexts(t *testing.T) {
	const context, limit = 24 * miB, 512 * miB
	free := func(bytes int) string { return fmt.Sprintf("info 0 free %d total %d", bytes, limit) }
	const after = limit - context
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"ends with the last green context", "green stack 2048 alloc 67108864 alloc 4096 info green newctx 0 info", []string{"green 0", "stack 0",
			"alloc 0", "alloc 0", free(after - 264*miB - 66*miB), "green 0", "newctx 0", free(after)}},
		{"stays while the primary one does", "ctx 0 green stack 2048 alloc 67108864 green ctx 0 info release 0 info release 0 newctx 0 info",
			[]string{"ctx 0", "green 0", "stack 0", "alloc 0", "green 0", "ctx 0", free(after - 264*miB - 64*miB), "release 0",
				free(after - 264*miB - 64*miB), "release 0", "newctx 0", free(after)}},
		{"is the primary one's", "ctx 0 stack 2048 green info stack 2048 info stack 1024 info green ctx 0 info", []string{"ctx 0", "stack 0",
			"green 0", free(after - 264*miB), "stack 0", free(after - 264*miB), "stack 0", free(after), "green 0", "ctx 0", free(after)}},
		{"pieces share its pages", "ctx 0 alloc 4096 green alloc 4096 info", []string{"ctx 0", "alloc 0", "green 0", "alloc 0", free(after - 2*miB)}},
		{"ends at a reset", "green stack 2048 alloc 67108864 reset 0 ctx 0 info", []string{"green 0", "stack 0", "alloc 0", "reset 0", "ctx 0", free(after)}},
		{"one after the other", "green alloc 67108864 green green alloc 67108864 info green newctx 0 info", []string{"green 0", "alloc 0", "green 0",
			"green 0", "alloc 0", free(after - 64*miB), "green 0", "newctx 0", free(after)}},
		{"freed after it", "ctx 0 green alloc 67108864 alloc 4096 green ctx 0 free 0 free 1 info", []string{"ctx 0", "green 0", "alloc 0", "alloc 0",
			"green 0", "ctx 0", "free 0", "free 0", free(after)}},
		{"not by the function of contexts", "green alloc 67108864 degreen info green newctx 0 info", []string{"green 0", "alloc 0", "degreen 201",
			free(after - 64*miB), "green 0", "newctx 0", free(after)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(t)
			s := speak(t, c, "init "+test.script+" line")
			s.says(t, append([]string{"init 0"}, test.want...)...)
			_, now := c.peakTotal(t)
			assert.Equal(t, c.used(t), now, "charged is what the driver has")
			s.goOn(t)
			require.NoError(t, s.cmd.Wait())
			requireWithin(t, c, limit)
		})
	}
}

// Memory that is freed in the order of a green context's stream: the call does not wait for the work before it, and the
// charge ends with that work, also if the green context ends before.
func TestFreeInOrderInGreenContexts(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"does not wait", "green alloc 67108864 kernel 30000000 afree 0 query info kill", []string{"green 0", "alloc 0", "kernel 0", "afree 0", "query 600", "info 469762048 0"}},
		{"nor in a stream of its own", "green stream use 1 alloc 67108864 kernel 30000000 afree 0 query kill", []string{"green 0", "stream 0", "use 0", "alloc 0", "kernel 0",
			"afree 0", "query 600"}},
		{"ends with the work", "green alloc 67108864 kernel 20000 afree 0 sync alloc 536870912 info", []string{"green 0", "alloc 0", "kernel 0", "afree 0", "sync 0", "alloc 0",
			"info 0 0"}},
		{"and if the context ends before", "ctx 0 green alloc 67108864 kernel 20000 afree 0 green ctx 0 alloc 536870912 info", []string{"ctx 0", "green 0", "alloc 0", "kernel 0",
			"afree 0", "green 0", "ctx 0", "alloc 0", "info 0 0"}},
		{"and another follows", "ctx 0 green alloc 67108864 kernel 20000 afree 0 green green alloc 536870912 afree 1 sync info", []string{"ctx 0", "green 0", "alloc 0", "kernel 0",
			"afree 0", "green 0", "green 0", "alloc 0", "afree 0", "sync 0", "info 536870912 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, newMachine(t, "H200"), gpu{gpuIDs[0], 512 * miB})
			lines, _ := c.pools(t, "init "+test.script)
			require.Equal(t, append([]string{"init 0"}, test.want...), lines[:len(test.want)+1])
		})
	}
}

// The driver refuses what the limit allows: it is given back.
func TestDriverRefusesGrowth(t *testing.T) {
	const context, limit = 24 * miB, 512 * miB
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(t)
	fail(t, c, "cuCtxSetLimit")
	lines, _ := c.probe(t, "init ctx 0 heap 268435456 info heap 268435456 info")
	assert.Equal(t, []string{"init 0", "ctx 0", "heap 2", fmt.Sprintf("info 0 free %d total %d", limit-context, limit),
		"heap 0", fmt.Sprintf("info 0 free %d total %d", limit-context-258*miB, limit)}, lines)
}

// A signal handler that allocates does not wait for the thread that it has interrupted, on a driver without locks.
func TestSignalHandlerAllocates(t *testing.T) {
	program := filepath.Join(t.TempDir(), "handler")
	require.NoError(t, compile(program, "testdata/handler.c"))
	for _, pages := range []bool{false, true} {
		c := oneGPU(t, giB)
		if pages {
			c.inPages(t)
		}
		c.sim = fakeDriver(t)
		lines, stderr := c.run(t, program, "20000")
		assert.Equal(t, []string{"1073741824 of 1073741824 free"}, lines, "pages: %v", pages)
		assert.Empty(t, stderr)
	}
}

// One that makes virtual memory or launches doesn't either, and nothing stays charged but what was exported.
func TestSignalHandlerCalls(t *testing.T) {
	program := filepath.Join(t.TempDir(), "handler")
	require.NoError(t, compile(program, "testdata/handler.c"))
	for kind, kept := range map[string]int{"virtual": 0, "imported": 2 * miB, "launch": 0} {
		t.Run(kind, func(t *testing.T) {
			c := oneGPU(t, giB)
			takeTurns(t, c)
			c.share(t, 50, limiter.PolicyDefault)
			c.sim = fakeDriver(t)
			lines, stderr := c.run(t, program, "20000", kind)
			assert.Equal(t, []string{fmt.Sprintf("%d of %d free", giB-kept, giB)}, lines)
			assert.Empty(t, stderr)
		})
	}
}

// One that opens memory of legacy IPC doesn't either. What it closes meanwhile can stay charged.
func TestSignalHandlerOpensIPCMemory(t *testing.T) {
	program := filepath.Join(t.TempDir(), "handler")
	require.NoError(t, compile(program, "testdata/handler.c"))
	c := oneGPU(t, giB)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program, "20000", "ipc")
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], " of 1073741824 free")
	assert.Empty(t, stderr)
}
