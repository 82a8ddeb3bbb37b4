//go:build root

package limiter_test

import (
	"math"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/limiter"
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

// BenchmarkSharesOfTwo is the same for two containers on a GPU that take turns: what they have from the second second on,
// 30 s of it with kernels of 2 s. idle is the part of the GPU that neither has.
func BenchmarkSharesOfTwo(b *testing.B) {
	program := pace(b)
	for _, kernels := range []string{"5", "500", "50000", "5,500,50000", "2000000"} {
		for _, how := range []string{"sync", "async", "graph"} {
			b.Run(how+"/kernels="+kernels, func(b *testing.B) {
				var worst, idle float64
				for range b.N {
					for _, pair := range [][2]uint32{{30, 70}, {10, 90}, {50, 50}} {
						off, unused := sharesOfTwo(b, program, pair, how, kernels)
						worst, idle = max(worst, off), max(idle, unused)
					}
				}
				b.ReportMetric(worst, "error-points")
				b.ReportMetric(idle, "idle-%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func sharesOfTwo(b *testing.B, program string, pair [2]uint32, how, kernels string) (worst, idle float64) {
	b.Helper()
	state := newMachine(b, "H200")
	all := []*container{
		sharing(b, state, "1", pair[0], limiter.PolicyDefault), sharing(b, state, "2", pair[1], limiter.PolicyDefault),
	}
	takeTurns(b, all...)
	for _, c := range all {
		cmd, _ := c.start(b, program, forever, how, kernels)
		defer cmd.Process.Kill()
	}
	window := 5 * time.Second
	if kernels == "2000000" {
		window = 30 * time.Second
	}
	time.Sleep(time.Second)
	var clocks, busy [2]uint64
	for i, c := range all {
		clocks[i], busy[i] = c.worked(b, 0)
	}
	time.Sleep(window)
	idle = 100
	for i, c := range all {
		clock, worked := c.worked(b, 0)
		got := 100 * float64(worked-busy[i]) / float64(clock-clocks[i])
		b.Logf("%v: %.2f", pair, got)
		worst = max(worst, math.Abs(got-float64(pair[i])))
		idle -= got
	}
	return worst, idle
}
