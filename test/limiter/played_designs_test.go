//go:build root

package limiter_test

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkDesigns has the limiter before turns, and one that corrects itself by a debt, beside turns (testdata/turns/bucket.c). With -v
// it prints a table, of 5 s from the second second on, or 30 s where something takes seconds.
func BenchmarkDesigns(b *testing.B) {
	turns := newPlayer(b)
	designs := []player{turns.with(b, "bucket.so", "-DDEBT=0", "testdata/turns/bucket.c"), turns.with(b, "debt.so", "-DDEBT=1", "testdata/turns/bucket.c"), turns}
	var table strings.Builder
	for range b.N {
		table.Reset()
		for _, containers := range []string{
			"30:500 70:500", "30:500:s8 70:500", "70:500:s8 30:500", "30:5:s4 70:500", "10:100,5000:data 90:500", "30:100,5000:data 70:500",
			"30:100,100,100,10000:data 70:500", "50:500:sync 50:500", "30:50000 70:500", "10:2000000 90:500", "10:2000000:sync 90:500",
			"10:1e10 90:500", "30:500:b1/3000:g2000 70:500", "30:500 70:500:b2000000/700000",
		} {
			seconds := 5
			if strings.Contains(containers, "2000000") || strings.Contains(containers, "1e10") {
				seconds = 30
			}
			fmt.Fprintf(&table, "\n%-34s", containers)
			for _, design := range designs {
				has := design.play(b, seconds, strings.Fields(containers)...)
				fmt.Fprintf(&table, " | %5.1f, %5.1f, idle %5.1f", has[0], has[1], 100-has[0]-has[1])
			}
		}
	}
	b.Logf("%-34s | %-24s | %-24s | turns%s", "", "bucket, factor", "bucket, debt", &table)
	b.ReportMetric(0, "ns/op")
}
