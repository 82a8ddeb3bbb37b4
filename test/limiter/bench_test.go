package limiter_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// BenchmarkAdded says what the library adds to a call, in nanoseconds, over a
// driver that does nothing, bare and limited in the same run.
func BenchmarkAdded(b *testing.B) {
	for _, others := range []int{0, 63} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			program, c := benchProgram(b)
			holdSlots(b, c, program, others)
			for range b.N {
				bare, limited := timings(b, c.bare(), program), timings(b, c, program)
				for name, ns := range limited {
					b.ReportMetric(ns-bare[name], "added-ns/"+name)
				}
				b.ReportMetric(limited["alloc+free"]/bare["alloc+free"], "ratio/alloc+free")
				b.ReportMetric(limited["meminfo"]/bare["meminfo"], "ratio/meminfo")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkLaunch is what a launch costs more where compute time is not limited, and
// where it is and there is enough of it.
func BenchmarkLaunch(b *testing.B) {
	for _, share := range []uint32{0, 50} {
		b.Run(fmt.Sprintf("share=%d", share), func(b *testing.B) {
			program, c := benchProgram(b)
			c.share(b, share, limiter.PolicyForce)
			for range b.N {
				bare, limited := timings(b, c.bare(), program), timings(b, c, program)
				b.ReportMetric(limited["launch"]-bare["launch"], "added-ns/launch")
				b.ReportMetric(bare["launch"], "bare-ns/launch")
			}
			require.Zero(b, c.cores(b).ThrottledNanoseconds)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStart is what a program that never uses CUDA pays for the preload.
func BenchmarkStart(b *testing.B) {
	_, c := benchProgram(b)
	start := func(c *container) time.Duration {
		var all []time.Duration
		for range 301 {
			cmd := c.command("/bin/true")
			from := time.Now()
			require.NoError(b, cmd.Run())
			all = append(all, time.Since(from))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	for range b.N {
		bare := start(c.bare())
		b.ReportMetric(float64((start(c)-bare).Nanoseconds())/1e3, "added-us/start")
		b.ReportMetric(float64(bare.Nanoseconds())/1e3, "bare-us/start")
	}
	b.ReportMetric(0, "ns/op")
}

func benchProgram(tb testing.TB) (string, *container) {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), "bench")
	require.NoError(tb, compile(program, "testdata/bench.c", "-O2"))
	c := oneCard(tb, 40*giB)
	c.sim = fakeDriver(tb)
	return program, c
}

func holdSlots(b *testing.B, c *container, program string, count int) {
	b.Helper()
	for range count {
		cmd := c.command(program, "hold")
		require.NoError(b, cmd.Start())
		b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	eventually(b, waitLong, "all hold their slots", func() bool { return c.used(b) == uint64(count)*4096 })
}

func timings(b *testing.B, c *container, program string) map[string]float64 {
	b.Helper()
	cmd := c.command("taskset", "-c", "1", program)
	if _, err := exec.LookPath("taskset"); err != nil {
		cmd = c.command(program)
	}
	out, err := cmd.Output()
	require.NoError(b, err)
	result := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var name string
		var ns float64
		_, err := fmt.Sscan(lines.Text(), &name, &ns)
		require.NoError(b, err)
		result[name] = ns
	}
	return result
}
