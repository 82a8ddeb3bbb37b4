//go:build root

package limiter_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/nvidia"
)

// BenchmarkShare measures how exact the share of a single container is, the worst of eight, in percent of the
// GPU's time: error is the distance from the share (or from what the program has without one, if that is
// less), loss what is missing of it, in percent of it. No agent corrects anything. The machine must be idle.
func BenchmarkShare(b *testing.B) {
	program := pace(b)
	for _, kernels := range []string{"5", "500", "50000", "5,500,50000"} {
		for _, how := range []string{"sync", "async", "graph"} {
			b.Run(how+"/kernels="+kernels, func(b *testing.B) {
				_, solo := newContainer(b, newMachine(b, "H200"), gpu{gpuIDs[0], giB}).bare().start(b, program, 1, how, kernels)
				most := (<-solo).percent()
				var worst, loss float64
				for range b.N {
					for _, batch := range [][]uint32{{5}, {10}, {25}, {30}, {50}, {70}, {90}, {95}} {
						var all []<-chan ran
						for _, share := range batch {
							_, done := sharing(b, newMachine(b, "H200"), "7", share, limiter.PolicyForce).start(b, program, 4, how, kernels)
							all = append(all, done)
						}
						for i, done := range all {
							want := min(float64(batch[i]), most)
							got := (<-done).percent()
							b.Logf("%d: %.2f of %.2f", batch[i], got, want)
							worst = max(worst, math.Abs(got-want))
							loss = max(loss, 100*(want-got)/want)
						}
					}
				}
				b.ReportMetric(worst, "error-points")
				b.ReportMetric(loss, "loss-%")
				b.ReportMetric(most, "solo-%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkSharesOfTwo is the same for two containers on a GPU, with the agent's loop: what they have in the
// six seconds after the first sixteen. By then all that each container had queued while it was the only one
// has run. Launchers that wait spin, so their pairs run in sequence.
func BenchmarkSharesOfTwo(b *testing.B) {
	program := pace(b)
	for _, kernels := range []string{"5", "500", "50000", "5,500,50000"} {
		for _, how := range []string{"sync", "async", "graph"} {
			b.Run(how+"/kernels="+kernels, func(b *testing.B) {
				var worst, loss float64
				batches := [][][2]uint32{{{30, 70}, {10, 90}, {50, 50}}}
				if how == "sync" {
					batches = [][][2]uint32{{{30, 70}}, {{10, 90}}, {{50, 50}}}
				}
				for range b.N {
					for _, pairs := range batches {
						off, lost := sharesOfTwo(b, program, pairs, how, kernels)
						worst, loss = max(worst, off), max(loss, lost)
					}
				}
				b.ReportMetric(worst, "error-points")
				b.ReportMetric(loss, "loss-%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// sharesOfTwo runs each pair on a GPU of its own.
func sharesOfTwo(b *testing.B, program string, pairs [][2]uint32, how, kernels string) (worst, loss float64) {
	b.Helper()
	state := newMachine(b, "H200", "H200", "H200")
	b.Setenv("SIMGPU_STATE", state)
	owners := map[int]string{}
	var containers []feedback.Container
	var all []*container
	for i, pair := range pairs {
		for j, share := range pair {
			c := newContainer(b, state, gpu{gpuIDs[i], giB})
			c.group = fmt.Sprint(10*i + j + 1)
			// What a container queued while it was the only one still runs: with kernels of 50 ms that can be
			// a minute's work.
			c.share(b, share, map[bool]limiter.Policy{true: limiter.PolicyDefault, false: limiter.PolicyForce}[len(kernels) <= 3])
			cmd, _ := c.with("CUDA_VISIBLE_DEVICES="+gpuIDs[i]).start(b, program, 23, how, kernels)
			owners[cmd.Process.Pid] = c.group
			containers = append(containers, feedback.Container{ID: c.group, Dir: c.dir})
			all = append(all, c)
		}
	}
	stop := agentLoop(b, containers, owners)
	time.Sleep(16 * time.Second)
	from, before := time.Now(), busyOf(b, all)
	time.Sleep(6 * time.Second)
	seconds, after := time.Since(from).Seconds(), busyOf(b, all)
	stop()
	for i, c := range all {
		want := float64(pairs[i/2][i%2])
		got := 100 * (after[i] - before[i]) / seconds
		states, err := limiter.ReadCores(c.limits())
		require.NoError(b, err)
		b.Logf("%v: %.2f of %.2f, %+v", pairs[i/2], got, want, states[0])
		worst = max(worst, math.Abs(got-want))
		loss = max(loss, 100*(want-got)/want)
	}
	return worst, loss
}

func busyOf(tb testing.TB, all []*container) (seconds []float64) {
	tb.Helper()
	for i, c := range all {
		seconds = append(seconds, c.busyOn(tb, i/2))
	}
	return seconds
}

// agentLoop runs the agent's half of the shares on the simulated driver's NVML.
func agentLoop(tb testing.TB, containers []feedback.Container, owners map[int]string) (stop func()) {
	tb.Helper()
	for _, c := range containers { // the loop follows a container's own files only
		limits, err := limiter.ReadLimits(limiter.LimitsPath(c.Dir))
		require.NoError(tb, err)
		limits.Identity = limiter.IdentityOf(c.ID)
		require.NoError(tb, limiter.UpdateLimits(c.Dir, limits))
	}
	ctx, cancel := context.WithCancel(context.Background())
	inventory := nvidia.NewCache(nvml.New(nvml.WithLibraryPath(filepath.Join(built, "sim", "libnvidia-ml.so.1"))), nvidia.CacheOptions{})
	require.NoError(tb, inventory.Refresh(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		feedback.New(feedback.Config{
			Containers: func(context.Context) ([]feedback.Container, error) { return containers, nil },
			Times:      inventory.ProcessTimes,
			Memories:   inventory.ProcessMemories,
			Owners:     func([]int, map[string]string) map[int]string { return owners },
			Log:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
		}).Run(ctx)
	}()
	return func() {
		cancel()
		<-done
		require.NoError(tb, inventory.Close())
	}
}
