//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// sharer is a container that runs testdata/workloads/spin, or the simulated driver's kernel without an end.
type sharer struct {
	share uint32
	spin  []string // nil: the kernel without an end
}

const (
	dataDecides = "--kernel=one"        // one function with one grid; a parameter decides how long it takes
	long        = "--kernels-us=200000" // few are in a period
)

// A share holds for what programs do every day: several streams, kernels shorter than an event, and such of one grid that take
// longer with other data. Each case has a GPU of its own.
func TestShareOfOrdinaryPrograms(t *testing.T) {
	const windows, settles, period = 5, time.Second, 2 * time.Second
	cases := []struct {
		name    string
		sharers []sharer
	}{
		{"one stream", []sharer{{30, []string{"--kernels-us=500"}}}},
		{"eight streams that fill the GPU", []sharer{{30, []string{"--kernels-us=500", "--streams=8", "--blocks=1000"}}}},
		{"eight streams that overlap", []sharer{{30, []string{"--kernels-us=500", "--streams=8"}}}},
		{"kernels of 5 µs", []sharer{{30, []string{"--kernels-us=5"}}}},
		{"kernels of 2 µs", []sharer{{30, []string{"--kernels-us=2"}}}},
		{"data decides, up to 20 times", []sharer{{30, []string{"--kernels-us=100,2000", dataDecides}}}},
		{"data decides, up to 50 times", []sharer{{30, []string{"--kernels-us=100,5000", dataDecides}}}},
		{"data decides, waited for", []sharer{{30, []string{"--kernels-us=100,5000", dataDecides, "--mode=sync"}}}},
		{"kernels of 200 ms", []sharer{{30, []string{long}}}},
		{"without an end", []sharer{{30, nil}}},
		{"beside kernels of 5 µs", []sharer{{30, []string{"--kernels-us=500"}}, {70, []string{"--kernels-us=5"}}}},
		{"beside eight streams that fill the GPU", []sharer{{30, []string{"--kernels-us=500"}}, {70, []string{"--kernels-us=500", "--streams=8", "--blocks=1000"}}}},
		{"beside eight streams that overlap", []sharer{{30, []string{"--kernels-us=500"}}, {70, []string{"--kernels-us=500", "--streams=8"}}}},
		{"beside data that decides", []sharer{{90, []string{"--kernels-us=500"}}, {10, []string{"--kernels-us=100,5000", dataDecides}}}},
		{"beside a kernel without an end", []sharer{{90, []string{"--kernels-us=500"}}, {10, nil}}},
	}
	var gpus []string
	for range cases {
		gpus = append(gpus, "H200")
	}
	state := newMachine(t, gpus...)
	var shares []shareOf
	for i, one := range cases {
		var beside []*container
		for j, s := range one.sharers {
			c := newContainer(t, state, gpu{fmt.Sprintf("GPU-%08x-5151-4000-8000-%012x", i+1, i+1), 8 * giB})
			c.group = fmt.Sprint(100*i + j + 1)
			c.share(t, s.share, limiter.PolicyForce)
			name := one.name
			if j > 0 {
				name += ", the other"
			}
			shares = append(shares, shareOf{name: name, c: c, gpu: i, percent: float64(s.share), all: slices.Contains(s.spin, long)})
			beside = append(beside, c)
		}
		takeTurns(t, beside...)
		for j, s := range one.sharers {
			beside[j].workload(t, i, s)
		}
	}
	look := func() (all []lookAt) {
		status := shares[0].c.truth(t)
		for _, s := range shares {
			all = append(all, s.in(status))
		}
		return all
	}
	eventually(t, time.Minute, "all of them work", func() bool {
		return !slices.ContainsFunc(look(), func(l lookAt) bool { return l.busy == 0 })
	})
	looks := [][]lookAt{look()}
	for n := range windows + 1 {
		time.Sleep(map[bool]time.Duration{true: settles, false: period}[n == 0])
		looks = append(looks, look())
	}
	for i, s := range shares {
		t.Run(s.name, func(t *testing.T) {
			if s.all {
				requireShare(t, looks[windows+1][i].since(looks[1][i]), s.percent)
				return
			}
			// Like holdShares it does not blame the limiter for a launcher that the machine did not run: the first period in
			// which it has enough counts, and each before.
			var most float64
			for n := 2; n < len(looks) && most < s.percent-5; n++ {
				most = max(most, looks[n][i].since(looks[n-1][i]))
			}
			requireShare(t, most, s.percent)
		})
	}
}

// workload starts a sharer's program on that GPU.
func (c *container) workload(t *testing.T, index int, s sharer) {
	t.Helper()
	program, args := filepath.Join(built, "sim", "check"), []string{"waits-forever"}
	if s.spin != nil {
		program, args = filepath.Join(built, "workloads", "spin"), append([]string{fmt.Sprint("--seconds=", forever), "--window-ms=200"}, s.spin...)
	}
	cmd := c.with(fmt.Sprint("CUDA_VISIBLE_DEVICES=", index)).command(program, args...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

// shareOf is what is measured of a container.
type shareOf struct {
	name    string
	c       *container
	gpu     int
	percent float64
	all     bool // over all periods
}

// lookAt is what a container has had of a GPU, and the GPU's clock.
type lookAt struct{ clock, busy uint64 }

func (l lookAt) since(before lookAt) (percent float64) {
	return 100 * float64(l.busy-before.busy) / float64(l.clock-before.clock)
}

func (s shareOf) in(status simStatus) (l lookAt) {
	l.clock = status.GPUs[s.gpu].ClockNs
	for _, g := range status.Groups {
		for _, one := range g.GPUs {
			if fmt.Sprint(g.ID) == s.c.group && one.Index == s.gpu {
				l.busy = one.BusyNs
			}
		}
	}
	return l
}
