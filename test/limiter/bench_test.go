//go:build root

package limiter_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// rounds is how often bare and limited alternate in one benchmark. What is reported
// are medians over the rounds: the machine may have something else to do in some.
const rounds = 9

// BenchmarkAdded measures what the library adds to a call, in nanoseconds, over a driver that does nothing,
// bare and limited in the same run: without a share of compute time, and with one that is never used up.
func BenchmarkAdded(b *testing.B) {
	for _, share := range []uint32{0, 50} {
		for _, row := range []struct {
			name               string
			others, former     int
			pages              bool
			ipcShared, ipcLeft int
		}{
			{name: "others=0"}, {name: "others=63", others: 63}, {name: "former=959", former: limiter.MaxProcesses - 1}, {name: "pages", pages: true},
			{name: "ipc-shared=512", ipcShared: 512}, {name: "ipc-left=8", ipcShared: 504, ipcLeft: 8}, {name: "ipc-left=512", ipcLeft: 512},
		} {
			b.Run(fmt.Sprintf("share=%d/%s", share, row.name), func(b *testing.B) {
				program, c := benchProgram(b)
				takeTurns(b, c)
				c.share(b, share, limiter.PolicyDefault)
				holdSlots(b, c, program, row.others)
				formerProcesses(b, c, row.former)
				ipcRecords(b, c, row.ipcShared, row.ipcLeft)
				if row.pages {
					c.inPages(b)
				}
				for range b.N {
					addedByCall(b, program, c)
				}
				require.Zero(b, c.cores(b).ThrottledNanoseconds)
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkSpill measures what an allocation costs that goes to the host's memory, because no more of the limit may be on the GPU.
func BenchmarkSpill(b *testing.B) {
	program, c := benchProgram(b)
	c.withPart(b, 1)
	for range b.N {
		addedByCall(b, program, c, "pairs")
	}
	b.ReportMetric(0, "ns/op")
}

func addedByCall(b *testing.B, program string, c *container, args ...string) {
	b.Helper()
	bare, limited := map[string][]spread{}, map[string][]spread{}
	for range rounds {
		for name, s := range timings(b, c.bare(), program, args...) {
			bare[name] = append(bare[name], s)
		}
		for name, s := range timings(b, c, program, args...) {
			limited[name] = append(limited[name], s)
		}
	}
	b.Logf("%-30s %10s %10s %10s %10s %8s", "ns", "bare p50", "added p50", "bare p99", "added p99", "ratio")
	for _, name := range slices.Sorted(maps.Keys(bare)) {
		without, with := middle(bare[name]), middle(limited[name])
		b.Logf("%-30s %10.1f %10.1f %10.1f %10.1f %8.2f", name, without.p50, with.p50-without.p50,
			without.p99, with.p99-without.p99, with.p50/without.p50)
		b.ReportMetric(with.p50-without.p50, "added-ns/"+name)
		b.ReportMetric(with.p99-without.p99, "p99-added-ns/"+name)
		b.ReportMetric(with.p50/without.p50, "ratio/"+name)
	}
}

// spread is the median and the 99th percentile of one run.
type spread struct{ p50, p99 float64 }

// middle is the median of each over several runs.
func middle(all []spread) spread {
	var p50, p99 []float64
	for _, s := range all {
		p50, p99 = append(p50, s.p50), append(p99, s.p99)
	}
	return spread{median(p50), median(p99)}
}

func median(all []float64) float64 { return percentile(all, 50) }

func percentile(all []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

func benchProgram(tb testing.TB) (string, *container) {
	tb.Helper()
	c := oneGPU(tb, 40*giB)
	c.sim = fakeDriver(tb)
	return benchC(tb, "bench"), c
}

func benchC(tb testing.TB, name string) string {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), name)
	require.NoError(tb, compile(program, "testdata/"+name+".c", "-O2"))
	return program
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

// formerProcesses are as many slots of processes that have had memory at the same time and are dead.
func formerProcesses(tb testing.TB, c *container, count int) {
	tb.Helper()
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(tb, err)
	defer f.Close()
	write := func(at int, data []byte) {
		_, err := f.WriteAt(data, int64(at))
		require.NoError(tb, err)
	}
	le := binary.LittleEndian
	charged := make([]byte, limiter.MaxProcesses/8)
	for i := range count {
		write(4096+i*1280, le.AppendUint32(nil, 0x40000001)) // an owner that died, of no process
		write(4096+i*1280+128, le.AppendUint64(nil, 4096))
		charged[i/8] |= 1 << (i % 8)
	}
	write(1024, le.AppendUint32(nil, uint32(count)))
	write(1032, charged)
}

// ipcRecords are allocations that a process shares by legacy IPC, and such that their makers have left while it has them open.
func ipcRecords(tb testing.TB, c *container, shared, left int) {
	tb.Helper()
	if shared+left == 0 {
		return
	}
	const phaseOpen, phaseLeft, slot, records, holders = 2, 4, 900, 1232896, 8192 // src/LAYOUT.md
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(tb, err)
	defer f.Close()
	write := func(at, value int) {
		_, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(value)), int64(at))
		require.NoError(tb, err)
	}
	for i := range shared + left {
		phase := phaseOpen
		if i >= shared {
			phase = phaseLeft
		}
		write(records+8*i, phase|slot<<7|1<<17)
		write(records+holders+128*i+slot/64*8, 1<<(slot%64))
	}
	for word := range 16 {
		bits := 0
		for bit := range 32 {
			if i := word*32 + bit; i >= shared && i < shared+left {
				bits |= 1 << bit
			}
		}
		write(1160+8*word, bits)
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint32(nil, uint32(shared+left)), 1028)
	require.NoError(tb, err)
}

// timings are the lines of testdata/bench.c, pinned to one core where that can be.
func timings(b *testing.B, c *container, program string, args ...string) map[string]spread {
	b.Helper()
	cmd := c.command("taskset", append([]string{"-c", "1", program}, args...)...)
	if _, err := exec.LookPath("taskset"); err != nil {
		cmd = c.command(program, args...)
	}
	out, err := cmd.Output()
	require.NoError(b, err)
	result := map[string]spread{}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var name string
		var s spread
		_, err := fmt.Sscan(lines.Text(), &name, &s.p50, &s.p99)
		require.NoError(b, err)
		result[name] = s
	}
	return result
}
