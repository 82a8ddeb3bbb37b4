//go:build root

package limiter_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPieces: a container takes each kind of memory in pieces of one size until it is refused, and again four seconds later;
// by how much it has more than its limit, at most and at the end, and how much of the limit it can't use beside room for less than
// a piece, as the simulated driver counts, which is what its NVML reports. Without an agent, and with the agent's loop. With -v it
// prints a table, the worst row first.
func BenchmarkPieces(b *testing.B) {
	dir := b.TempDir()
	program, loop := filepath.Join(dir, "pieces"), filepath.Join(dir, "loop")
	require.NoError(b, compile(program, "testdata/pieces.c"))
	out, err := exec.Command("go", "build", "-o", loop, "../gpu/loop").CombinedOutput()
	require.NoError(b, err, "%s", out)
	for range b.N {
		reportPieces(b, append(takeAllPieces(b, program, ""), takeAllPieces(b, program, loop)...))
	}
	b.ReportMetric(0, "ns/op")
}

type piecesRow struct {
	node, kind          string
	kib                 uint64
	count               int
	over, later, unused float64 // percent of the limit
}

const contextOfPieces = 24 * miB

func takeAllPieces(b *testing.B, program, loop string) (rows []piecesRow) {
	b.Helper()
	for _, kind := range []string{"linear", "linear, a context of unknown size", "pitched", "managed", "vmm", "async", "pool", "graph", "array",
		"array BC1", "array NV12", "mipmapped"} {
		var all []*taker
		for _, kib := range []uint64{4, 64, 512, 700, 1024, 1025, 1500, 2048, 2150, 3072, 32 << 10, 65537, 512 << 10, 1 << 20, 8 << 20} {
			switch { // what a driver refuses, whatever the limit is
			case kind == "vmm" && kib%2048 != 0, strings.HasPrefix(kind, "array ") && kib > 512<<10:
				continue
			}
			all = append(all, newTaker(b, program, loop, kind, kib))
		}
		time.Sleep(4 * time.Second) // the agent's loop has three looks in it
		for _, t := range all {
			rows = append(rows, t.end(b))
		}
	}
	return rows
}

// taker is a program that takes pieces. Its limit has room for three pieces and a half, and is no multiple of a page.
type taker struct {
	*talker
	c     *container
	limit uint64
	row   piecesRow
}

// newTaker starts one and waits until it is refused. loop: the agent's loop that serves it; "": none.
func newTaker(b *testing.B, program, loop, kind string, kib uint64) *taker {
	b.Helper()
	t := &taker{limit: max(512*miB, kib*kiB*7/2) + contextOfPieces + 12345, row: piecesRow{node: "no agent", kind: kind, kib: kib}}
	known := uint64(contextOfPieces)
	kind, unknown, _ := strings.Cut(kind, ", ")
	if unknown != "" {
		known = 0
	}
	t.c = newContainerKnowing(b, newMachine(b, "H200:context_mib=24"), known, gpu{gpuIDs[0], t.limit}).inPages(b)
	if loop == "" {
		t.c.unmeasured(b)
	} else {
		t.row.node = "agent"
		t.c.measuredFirst(b)
		link := filepath.Join(b.TempDir(), "slice")
		require.NoError(b, os.Symlink(t.c.dir, link))
		t.c.dir = link
		agent := talk(b, t.c.bare().command(loop, filepath.Dir(link)))
		require.Equal(b, "ready", agent.hear(b))
	}
	t.talker = talk(b, t.c.command(program, kind, fmt.Sprint(kib)))
	t.row.count = t.taken(b)
	return t
}

func (t *taker) taken(b *testing.B) (count int) {
	b.Helper()
	var result int
	_, err := fmt.Sscanf(t.hear(b), "pieces %d result %d", &count, &result)
	require.NoError(b, err)
	require.Equal(b, 2, result, "%s of %d KiB", t.row.kind, t.row.kib)
	return count
}

// end has it take what it can get, and is its row.
func (t *taker) end(b *testing.B) piecesRow {
	b.Helper()
	t.tell(b, "")
	t.row.count += t.taken(b)
	peak, now := t.c.peakTotal(b)
	percent := func(bytes, beyond uint64) float64 {
		return max(0, 100*(float64(bytes)-float64(beyond))/float64(t.limit))
	}
	t.row.over, t.row.later, t.row.unused = percent(peak, t.limit), percent(now, t.limit), percent(t.limit, now+t.row.kib*kiB+2*miB)
	require.NoError(b, t.in.Close())
	require.NoError(b, t.cmd.Wait())
	return t.row
}

func reportPieces(b *testing.B, rows []piecesRow) {
	b.Helper()
	slices.SortStableFunc(rows, func(x, y piecesRow) int { return cmp.Or(cmp.Compare(y.over, x.over), cmp.Compare(y.unused, x.unused)) })
	var table strings.Builder
	worst := map[string]float64{}
	for _, r := range rows {
		worst[r.node] = max(worst[r.node], r.over)
		fmt.Fprintf(&table, "\n%-9s %-34s %8d %8d %9.2f %9.2f %9.2f", r.node, r.kind, r.kib, r.count, r.over, r.later, r.unused)
	}
	b.Logf("%-9s %-34s %8s %8s %9s %9s %9s%s", "node", "kind", "KiB", "pieces", "over %", "later %", "unused %", &table)
	b.ReportMetric(worst["no agent"], "worst-over-%/no-agent")
	b.ReportMetric(worst["agent"], "worst-over-%/agent")
}
