//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// numbers are those of a program's output, by line.
func numbers(tb testing.TB, c *container, program string, args ...string) (lines [][]float64) {
	tb.Helper()
	out, err := c.command(program, args...).Output()
	require.NoError(tb, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		var row []float64
		for _, word := range strings.Fields(line) {
			var n float64
			if _, err := fmt.Sscan(word, &n); err == nil {
				row = append(row, n)
			}
		}
		lines = append(lines, row)
	}
	return lines
}

func column(rows [][]float64, i int) (all []float64) {
	for _, row := range rows {
		all = append(all, row[i])
	}
	return all
}

// BenchmarkStart is what a program that never uses CUDA pays for the preload, and what
// it would pay for one with nothing in it: less no library can cost.
func BenchmarkStart(b *testing.B) {
	program := benchC(b, "start")
	c := oneGPU(b, giB)
	dir := b.TempDir()
	source, empty := filepath.Join(dir, "empty.c"), filepath.Join(dir, "empty.so")
	require.NoError(b, os.WriteFile(source, []byte("int nothing;\n"), 0o644))
	require.NoError(b, compile(empty, source, "-shared", "-fPIC", "-nostartfiles", "-Wl,-z,norelro,-z,noseparate-code"))
	for range b.N {
		n := numbers(b, c.bare(), program, "2000", "/bin/true", "-", empty, c.library)
		for i, what := range []string{"min", "p50", "p99"} {
			b.ReportMetric(n[0][i]/1e3, "bare-us/"+what)
			b.ReportMetric((n[1][i]-n[0][i])/1e3, "added-by-empty-us/"+what)
			b.ReportMetric((n[2][i]-n[0][i])/1e3, "added-us/"+what)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJoin is what cuInit, and the way to the first context, take longer when
// many processes come together, whatever a context takes.
func BenchmarkJoin(b *testing.B) {
	onTmpfs(b)
	program := benchC(b, "join")
	for _, context := range []time.Duration{0, 100 * time.Millisecond} {
		sim := fakeDriver(b, fmt.Sprintf("-DCONTEXT_US=%d", context.Microseconds()))
		for _, test := range []struct{ processes, rounds int }{{1, 101}, {64, 9}, {300, 5}} {
			b.Run(fmt.Sprintf("context=%s/processes=%d", context, test.processes), func(b *testing.B) {
				for range b.N {
					joined(b, program, sim, test.processes, test.rounds)
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkFirstAllocation is what the first allocation in a context takes longer, because the process measures what the
// context takes before it, with the simulated driver's NVML; and one that only an agent measures.
func BenchmarkFirstAllocation(b *testing.B) {
	program := benchC(b, "join")
	for _, processes := range []int{1, 16} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			onTmpfs(b)
			var bare, unmeasured, measured []float64
			for range b.N * 11 {
				c := newContainerKnowing(b, newMachine(b, "H200:context_mib=120"), 120*miB, gpu{gpuIDs[0], 40 * giB}).inPages(b)
				first := func(c *container) []float64 { return column(numbers(b, c, program, fmt.Sprint(processes)), 2) }
				bare = append(bare, first(c.bare())...)
				unmeasured = append(unmeasured, first(c)...)
				measured = append(measured, first(c.measuredFirst(b))...)
			}
			b.ReportMetric(median(bare)/1e6, "bare-ms")
			b.ReportMetric((median(unmeasured)-median(bare))/1e6, "added-ms/agent")
			b.ReportMetric((median(measured)-median(bare))/1e6, "added-ms/process")
			b.ReportMetric((percentile(measured, 99)-percentile(bare, 99))/1e6, "p99-added-ms/process")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// onTmpfs has a benchmark's files where a node's are: a page that is written to for the
// first time costs more on a disk. Where there is none they stay where they are.
func onTmpfs(b *testing.B) {
	b.Helper()
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		b.Setenv("TMPDIR", "/dev/shm")
	}
}

// joined starts with fresh files in each round, as a new container does.
func joined(b *testing.B, program, sim string, processes, rounds int) {
	b.Helper()
	var p99 [2][]float64 // of cuInit in each round, bare and limited
	var all [2][][]float64
	onTmpfs(b)
	for range rounds {
		c := oneGPU(b, 40*giB)
		c.sim = sim
		for i, one := range []*container{c.bare(), c} {
			rows := numbers(b, one, program, fmt.Sprint(processes))
			require.Len(b, rows, processes)
			all[i] = append(all[i], rows...)
			p99[i] = append(p99[i], percentile(column(rows, 0), 99))
		}
	}
	for i, what := range []string{"cuInit", "first-context"} {
		bare, limited := column(all[0], i), column(all[1], i)
		b.ReportMetric(median(bare)/1e6, "bare-ms/"+what)
		b.ReportMetric((median(limited)-median(bare))/1e6, "added-ms/"+what)
		b.ReportMetric(percentile(bare, 99)/1e6, "p99-bare-ms/"+what)
		b.ReportMetric((percentile(limited, 99)-percentile(bare, 99))/1e6, "p99-added-ms/"+what)
	}
	b.ReportMetric((median(p99[1])-median(p99[0]))/1e6, "p99-added-ms/cuInit-median-round")
}

// BenchmarkFirstLaunches is the longest launch of the first half second on an idle
// GPU, with a share of compute time.
func BenchmarkFirstLaunches(b *testing.B) {
	program, c := benchProgram(b)
	for range b.N {
		var bare, limited []float64
		for range rounds {
			fresh := oneGPU(b, 40*giB)
			fresh.sim = c.sim
			fresh.share(b, 50, limiter.PolicyForce)
			bare = append(bare, timings(b, fresh.bare(), program, "first")["longest"].p50)
			limited = append(limited, timings(b, fresh, program, "first")["longest"].p50)
			require.Zero(b, fresh.cores(b).ThrottledNanoseconds)
		}
		b.ReportMetric(median(bare)/1e3, "bare-us/longest")
		b.ReportMetric(median(limited)/1e3, "limited-us/longest")
		b.ReportMetric(percentile(limited, 0)/1e3, "limited-us/longest-of-best-round")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkReuse is the time from a SIGKILL until another process, which tries all the time, has what the
// killed process had. No process waited for it before.
func BenchmarkReuse(b *testing.B) {
	c := oneGPU(b, 40*giB)
	c.sim = fakeDriver(b)
	program := benchC(b, "reuse")
	for range b.N {
		took := column(numbers(b, c, program, fmt.Sprint(uint64(40*giB)), "200"), 0)
		b.ReportMetric(median(took)/1e6, "ms/reusable")
		b.ReportMetric(percentile(took, 99)/1e6, "p99-ms/reusable")
		b.ReportMetric(percentile(took, 100)/1e6, "most-ms/reusable")
	}
	b.ReportMetric(0, "ns/op")
}
