//go:build root

package limiter_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPieces: a container takes each kind of memory in pieces of one size until it is refused; by how much it has more than its
// limit, at most and three seconds later, and how much of the limit it can't use beside room for less than a piece, as the
// simulated driver counts, which is what its NVML reports. There is no agent. With -v it prints a table, the worst row first.
func BenchmarkPieces(b *testing.B) {
	program := filepath.Join(b.TempDir(), "pieces")
	require.NoError(b, compile(program, "testdata/pieces.c"))
	for range b.N {
		reportPieces(b, takeAllPieces(b, program))
	}
	b.ReportMetric(0, "ns/op")
}

type piecesRow struct {
	kind                string
	kib                 uint64
	count               int
	over, later, unused float64 // percent of the limit
}

func takeAllPieces(b *testing.B, program string) (rows []piecesRow) {
	b.Helper()
	for _, kib := range []uint64{4, 2048, 8 << 20} {
		rows = append(rows, takePieces(b, 0, program, "linear", kib))
	}
	for _, kind := range []string{"linear", "pitched", "managed", "vmm", "async", "pool", "graph", "array", "array BC1", "array NV12"} {
		for _, kib := range []uint64{4, 64, 512, 700, 1024, 1025, 1500, 2048, 2150, 3072, 32 << 10, 65537, 512 << 10, 1 << 20, 8 << 20} {
			switch { // what a driver refuses, whatever the limit is
			case kind == "vmm" && kib%2048 != 0, strings.HasPrefix(kind, "array ") && kib > 512<<10:
				continue
			}
			rows = append(rows, takePieces(b, contextOfPieces, program, kind, kib))
		}
	}
	return rows
}

func reportPieces(b *testing.B, rows []piecesRow) {
	b.Helper()
	slices.SortStableFunc(rows, func(x, y piecesRow) int { return cmp.Or(cmp.Compare(y.over, x.over), cmp.Compare(y.unused, x.unused)) })
	var table strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&table, "\n%-32s %8d %8d %9.2f %9.2f %9.2f", r.kind, r.kib, r.count, r.over, r.later, r.unused)
	}
	b.Logf("%-32s %8s %8s %9s %9s %9s%s", "kind", "KiB", "pieces", "over %", "later %", "unused %", &table)
	known := slices.DeleteFunc(slices.Clone(rows), func(r piecesRow) bool { return strings.Contains(r.kind, ",") })
	b.ReportMetric(rows[0].over, "worst-over-%")
	b.ReportMetric(known[0].over, "worst-over-%/context-known")
}

const contextOfPieces = 24 * miB

// takePieces: the limit has room for three pieces and a half, and is no multiple of a page. context is what the host expects.
func takePieces(b *testing.B, context uint64, program, kind string, kib uint64) piecesRow {
	b.Helper()
	limit := max(512*miB, kib*kiB*7/2) + contextOfPieces + 12345
	c := newContainerKnowing(b, newMachine(b, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit}).inPages(b).unmeasured(b)
	p := talk(b, c.command(program, kind, fmt.Sprint(kib)))
	r := piecesRow{kind: kind, kib: kib}
	if context == 0 {
		r.kind += ", a context of unknown size"
	}
	var result int
	_, err := fmt.Sscanf(p.hear(b), "pieces %d result %d", &r.count, &result)
	require.NoError(b, err)
	require.Equal(b, 2, result, "%s of %d KiB", kind, kib)
	peak, now := c.peakTotal(b)
	percent := func(bytes, beyond uint64) float64 { return max(0, 100*(float64(bytes)-float64(beyond))/float64(limit)) }
	r.over, r.unused = percent(peak, limit), percent(limit, now+kib*kiB+2*miB)
	if r.over > 0 {
		time.Sleep(3 * time.Second)
		_, now = c.peakTotal(b)
		r.later = percent(now, limit)
	}
	require.NoError(b, p.in.Close())
	require.NoError(b, p.cmd.Wait())
	return r
}
