//go:build root

package simdriver

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What real GPUs were seen to do with time, or NVIDIA documents that they do. The source stands with each. Times are the
// GPU's, so a slow machine changes none of them; a check that was too slow to launch in time does it again.

// CUDA C++ Programming Guide, "Concurrent Kernel Execution": kernels of several streams run at the same time as far as there is
// room. Eight streams of kernels that fill the GPU take eight times as long, and the event pairs of each have the others in them.
func TestRealStreamsFillTheGPUOnce(t *testing.T) {
	s := New(t, Plain, "H200:event_ns=0") // it compares times exactly
	for _, check := range []string{"overlap", "overlap-unequal"} {
		text, err := s.Command("sim/check", check).CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	for check, wanted := range map[string]int64{"streams-small": 300e6 + 2*10e6, "streams-large": 300e6 + 2*8*10e6} {
		var busy int64
		for together := int64(0); together == 0; {
			before := s.Status().GPUs[0].BusyNanoseconds
			values, code := s.Run("sim/check", check)
			require.Zero(t, code)
			together = values.Int("together")
			busy = int64(s.Status().GPUs[0].BusyNanoseconds - before)
		}
		require.EqualValues(t, wanted, busy, check)
	}
}

// CUDA C++ Programming Guide, "Graph Structure": a node may run once those it depends on are complete.
func TestRealGraphBranchesOverlap(t *testing.T) {
	requireTimed(t, "graph-overlap")
}

func requireTimed(t *testing.T, check string) {
	t.Helper()
	s := New(t, Plain, "H200:event_ns=0") // it compares times exactly
	text, err := s.Command("sim/check", check).CombinedOutput()
	require.NoError(t, err, "%s", text)
	requireEmpty(t, s.Status())
}

// Persistent kernels of matrix products and attention have one grid for any shape (NVIDIA CUTLASS, "Efficient GEMM in CUDA",
// "Threadblock Rasterization"; FlashAttention): the data decides how long they take.
func TestRealDataDecidesDuration(t *testing.T) {
	requireTimed(t, "data-decides")
	s := New(t, Plain, "H200:event_ns=0")
	values, code := s.Run("workloads/spin", "--seconds=0.05", "--kernels-us=100,2000", "--kernel=one")
	require.Zero(t, code)
	want := values.Int("launches_100_us")*100_000 + values.Int("launches_2000_us")*2_000_000
	require.EqualValues(t, want, s.Status().GPUs[0].BusyNanoseconds)
}

// CUDA driver API, cuEventElapsedTime: a resolution of around 0.5 µs. An event writes its time in its stream, which takes the GPU a
// moment: a kernel between two of them seems longer by that. NVIDIA/NVTX#3: a V100 records 400,000 events a second, and ten times as
// many without a time; ICLDisco/parsec#576 has that factor too. Here one without a time costs nothing.
func TestRealEventsTakeTime(t *testing.T) {
	s := New(t, Plain, "H200") // as by default
	values, code := s.Run("sim/check", "event-cost")
	require.Zero(t, code)
	require.EqualValues(t, 2500, values.Int("empty_ns"))
	require.EqualValues(t, 7500, values.Int("kernel_ns"))
	s.Ctl("set", "0", "event_ns=1700")
	values, code = s.Run("sim/check", "event-cost")
	require.Zero(t, code)
	for name, exact := range map[string]float64{"empty_ns": 1700, "kernel_ns": 6700} {
		require.Zero(t, values.Int(name)%500, name)
		require.InDelta(t, exact, float64(values.Int(name)), 500, name)
	}
}

// docs/measurements/2026-11-26-h100.md: a kernel behind another takes 1.8 µs more, and events before and behind one that is
// waited for add 6 µs to its time, of which a pair with nothing between has 1.3.
func TestRealKernelsTakeTimeToStart(t *testing.T) {
	s := New(t, Plain, "H100")
	values, code := s.Run("sim/check", "event-cost") // of a kernel behind another
	require.Zero(t, code)
	require.InDelta(t, 1300, float64(values.Int("empty_ns")), 500)
	require.InDelta(t, 5000+1800+1300, float64(values.Int("kernel_ns")), 500)
	busy := s.Status().GPUs[0].BusyNanoseconds
	values, code = s.Run("workloads/launch", "--count=1", "--duration-us=5000")
	require.Zero(t, code)
	event, err := strconv.ParseFloat(values["event_ms"], 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, event, 5.005)
	require.GreaterOrEqual(t, s.Status().GPUs[0].BusyNanoseconds-busy, uint64(5_006_000))
	s.Ctl("set", "0", "gap_ns=0")
	s.Ctl("set", "0", "start_ns=0")
	values, code = s.Run("sim/check", "event-cost")
	require.Zero(t, code)
	require.InDelta(t, 5000+1300, float64(values.Int("kernel_ns")), 500)
}

// Tanasic et al., "Enabling Preemptive Multiprogramming on GPUs" (ISCA 2014): to save and load the state of all multiprocessors
// takes a GPU tens of microseconds, in which no kernel runs. An H200 has 62 MiB of registers and shared memory and a memory of
// 4.8 TB/s (NVIDIA's data sheet): 14 µs each way, less where a kernel uses a part of them. The default is 20 µs.
func TestRealAContextSwitchTakesTime(t *testing.T) {
	s := New(t, Plain, "H200:slice_us=1800,switch_us=200")
	first := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=500")
	waitAllBusy(t, s, 1)
	require.InDelta(t, 1, measure(s, 300*time.Millisecond).share(first), 0.01)
	second := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=7000")
	waitAllBusy(t, s, 2)
	for _, during := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond} { // turn by turn, and many together
		g := measure(s, during)
		require.InDelta(t, 0.9, float64(g.gpu)/float64(g.clock), 0.02)
		require.InDelta(t, 0.45, g.share(first), 0.02)
		require.InDelta(t, 0.45, g.share(second), 0.02)
	}
	second.Kill()
	waitAllBusy(t, s, 1)
	require.InDelta(t, 1, measure(s, 300*time.Millisecond).share(first), 0.01)

	// docs/measurements/2026-11-26-h100.md: an H100 takes 140 µs.
	for profile, us := range map[string]float64{"H200": 20, "H100": 140} {
		s = New(t, Plain, profile)
		for _, us := range []string{"500", "7000"} {
			s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us="+us)
		}
		waitAllBusy(t, s, 2)
		g := measure(s, 300*time.Millisecond)
		require.InDelta(t, 2000/(2000+us), float64(g.gpu)/float64(g.clock), 0.005)
	}
}

// NVIDIA, "Multi-Process Service": kernels of several processes run at the same time; without it, time slices give each process
// the whole GPU in turn.
func TestRealProcessesOverlapWithMPS(t *testing.T) {
	for _, test := range []struct {
		description, mps, blocks, streams string
		each                              float64
	}{
		{"turns, whatever their width", "off", "--blocks=1", "--streams=0", 1. / 3},
		{"small ones run together", "on", "--blocks=44", "--streams=0", 1},
		{"large ones have a part each", "on", "--blocks=1000", "--streams=0", 1. / 3},
		{"small ones of several streams add up", "on", "--blocks=16", "--streams=4", 2. / 3},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := New(t, Plain, "H200:switch_us=0,mps="+test.mps)
			var list []*Process
			for range 3 {
				list = append(list, s.Start("workloads/spin", "--seconds=60", "--window-ms=4000", "--kernels-us=5000", test.blocks, test.streams))
			}
			waitAllBusy(t, s, 3)
			g := measure(s, 500*time.Millisecond)
			for _, p := range list {
				require.InDelta(t, test.each, g.share(p), 0.02, "%v", g)
			}
			require.InDelta(t, 1, float64(g.gpu)/float64(g.clock), 0.02)
			list[0].Kill()
		})
	}
}

// CUDA C++ Programming Guide, "Multi-Process Service" and "Compute Preemption": since Pascal a kernel without an end is
// interrupted for those of other processes. It ends with its process.
func TestRealAKernelThatNeverEnds(t *testing.T) {
	requireTimed(t, "never-ends")
	s := New(t, Plain, "H200:switch_us=0")
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

// CUDA driver API, "Green Contexts": a green context has some multiprocessors, and its streams use no others. Kernels of two of
// them run at the same time.
func TestRealGreenContextsHaveMultiprocessors(t *testing.T) { requireTimed(t, "green") }
