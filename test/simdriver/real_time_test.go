//go:build root

package simdriver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What real GPUs were seen to do with time, or NVIDIA documents that they do. The source stands with each. Times are the
// GPU's, so a slow machine changes none of them; a check that was too slow to launch in time does it again.

// CUDA C++ Programming Guide, "Concurrent Kernel Execution": kernels of several streams run at the same time as far as there is
// room. Eight streams of kernels that fill the GPU take eight times as long, and the event pairs of each tell of the others.
func TestRealStreamsFillTheGPUOnce(t *testing.T) {
	s := New(t, Plain, "H200")
	for _, check := range []string{"overlap", "overlap-unequal"} {
		text, err := s.Command("sim/check", check).CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	for blocks, streams := range map[string]float64{"--blocks=16": 8, "--blocks=132": 1} {
		before := s.Status().GPUs[0]
		values, code := s.Run("workloads/spin", "--seconds=0.5", "--kernels-us=10000", "--streams=8", "--window-ms=3200", blocks)
		require.Zero(t, code)
		after := s.Status().GPUs[0]
		wanted := float64(values.Int("launches")) * 10e6 / streams
		require.InDelta(t, wanted, float64(after.BusyNanoseconds-before.BusyNanoseconds), 1e6, blocks)
	}
}

// CUDA C++ Programming Guide, "Graph Structure": a node may run once those it depends on are complete.
func TestRealGraphBranchesOverlap(t *testing.T) {
	requireTimed(t, "graph-overlap")
}

func requireTimed(t *testing.T, check string) {
	t.Helper()
	s := New(t, Plain, "H200")
	text, err := s.Command("sim/check", check).CombinedOutput()
	require.NoError(t, err, "%s", text)
	requireEmpty(t, s.Status())
}

// Persistent kernels of matrix products and attention have one grid for any shape (NVIDIA CUTLASS, "Efficient GEMM in CUDA",
// "Threadblock Rasterization"; FlashAttention): the data decides how long they take.
func TestRealDataDecidesDuration(t *testing.T) {
	requireTimed(t, "data-decides")
	s := New(t, Plain, "H200")
	values, code := s.Run("workloads/spin", "--seconds=0.05", "--kernels-us=100,2000", "--kernel=one")
	require.Zero(t, code)
	want := values.Int("launches_100_us")*100_000 + values.Int("launches_2000_us")*2_000_000
	require.EqualValues(t, want, s.Status().GPUs[0].BusyNanoseconds)
}

// CUDA C++ Programming Guide, "Multi-Process Service" and "Compute Preemption": since Pascal a kernel without an end is
// interrupted for those of other processes. It ends with its process.
func TestRealAKernelThatNeverEnds(t *testing.T) {
	requireTimed(t, "never-ends")
	s := New(t, Plain, "H200")
	forever := s.Start("sim/check", "waits-forever")
	other := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=500")
	waitAllBusy(t, s, 2)
	g := measure(s, 300*time.Millisecond)
	require.InDelta(t, 0.5, g.share(forever), 0.02)
	require.InDelta(t, 0.5, g.share(other), 0.02)
	forever.Kill()
	s.Status()
	require.InDelta(t, 1, measure(s, 300*time.Millisecond).share(other), 0.02)
	other.Kill()
	requireEmpty(t, s.Status())
}
