//go:build root

package limiter_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// mix is what the containers of a GPU run: the first the first, and so on, in a ring.
type mix struct {
	work   []string
	within float64 // points off the share
	least  float64 // of what the programs have by themselves in turns of these shares, in percent
}

// Programs that keep a GPU busy: steps of 17 ms that are waited for, with 0.3 ms between them; and requests that are waited for, with
// 50 µs between them, of which the data decides how long they take.
const (
	training = "500:b1/17000:g300"
	serving  = "200,2000:data:sync:event:g50"
)

// mixes are the kinds of work that shares are for. A graph is one launch, as long as all of its kernels.
func mixes() (all []mix) {
	for _, us := range []struct {
		us            int
		within, least float64
	}{{5, 3, 97}, {500, 3, 97}, {50000, 3, 92}, {2000000, 5, 92}} {
		for _, how := range []string{"", ":sync", ":s4", ":s16"} {
			all = append(all, mix{[]string{fmt.Sprint(us.us, how)}, us.within, us.least})
		}
	}
	for _, work := range []string{"40", "4000", "100,1000:data", "100,10000:data", "100,10000:data:sync", "100,10000:data:s8", training, serving} {
		all = append(all, mix{[]string{work}, 3, 97})
	}
	for i := range all {
		if all[i].work[0] == "5:s16" { // which use the GPU longer than is known
			all[i].within = 3.5
		}
	}
	return append(all, mix{[]string{training, serving}, 3, 97}, mix{[]string{serving, training}, 3, 97})
}

// TestPlayedShares has pairs of different work.
var playedShares = [][]int{{10, 90}, {30, 70}, {50, 50}, {10, 20, 70}}

// playedRow is what containers had of the GPU, in percent.
type playedRow struct {
	name, shares string
	has          []float64
	off          float64 // of what all have, points off a share
	sum          float64
	turns        float64 // what their programs have in turns of these shares, each by itself
	without      float64 // what they have without shares
}

// playMix plays a mix from the second second on: 5 s, and of kernels of 2 s 30 s, of which one is 7 %, or 60 s of three containers.
func (p player) playMix(tb testing.TB, m mix, shares []int, byItself func(work string) float64) playedRow {
	tb.Helper()
	seconds := 5
	if strings.Contains(strings.Join(m.work, " "), "2000000") {
		seconds = 30 * (len(shares) - 1)
	}
	play := func(more string) (has []float64, sum float64) {
		var containers []string
		for i, share := range shares {
			containers = append(containers, fmt.Sprintf("%d:%s%s", share, m.work[i%len(m.work)], more))
		}
		has = p.play(tb, seconds, containers...)
		for _, percent := range has {
			sum += percent
		}
		return has, sum
	}
	row := playedRow{name: strings.Join(m.work, " beside "), shares: fmt.Sprint(shares), without: 100}
	row.has, row.sum = play("")
	if row.sum < 99 {
		_, row.without = play(":disable")
	}
	for i, share := range shares {
		row.off = max(row.off, math.Abs(100*row.has[i]/row.sum-float64(share)))
		row.turns += float64(share) / 100 * byItself(m.work[i%len(m.work)])
	}
	return row
}

func logPlayed(tb testing.TB, rows []playedRow) {
	tb.Helper()
	slices.SortFunc(rows, func(x, y playedRow) int { return cmp.Compare(y.off, x.off) })
	var table strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&table, "\n%-12s %-62s %-18s off %4.1f, together %5.1f, in turns by themselves %5.1f, without shares %5.1f",
			r.shares, r.name, fmt.Sprintf("%.1f", r.has), r.off, r.sum, r.turns, r.without)
	}
	tb.Logf("worst first:%s", &table)
}

// Every kind of work with every set of shares: see mixes. What a program by itself leaves idle, because it waits or launches too slowly,
// it leaves idle in its turn: so the shares are of what all have.
func TestPlayedTable(t *testing.T) {
	p := newPlayer(t)
	var mutex sync.Mutex
	var rows []playedRow
	single := map[string]float64{}
	byItself := func(work string) float64 {
		mutex.Lock()
		percent, known := single[work]
		mutex.Unlock()
		if !known {
			percent = p.play(t, 2, "100:"+work)[0]
			mutex.Lock()
			single[work] = percent
			mutex.Unlock()
		}
		return percent
	}
	t.Cleanup(func() { logPlayed(t, rows) })
	for _, m := range mixes() {
		for _, shares := range playedShares {
			t.Run(fmt.Sprint(shares, " ", strings.Join(m.work, " beside ")), func(t *testing.T) {
				t.Parallel()
				row := p.playMix(t, m, shares, byItself)
				mutex.Lock()
				rows = append(rows, row)
				mutex.Unlock()
				assert.LessOrEqual(t, row.off, m.within, "points off: %.1f", row.has)
				assert.GreaterOrEqual(t, 100*row.sum/row.turns, m.least, "percent of what they have by themselves: %.1f", row.has)
			})
		}
	}
}

// The same where a switch between processes, a launch, an event and the end of a wait take what they do on an H100. Figures are percents
// of what each program has by itself. The words w2 are for programs that first run the function on less data: the limiter then
// takes its kernels for short.
func TestPlayedCosts(t *testing.T) {
	p := newPlayer(t)
	p.costs = []string{"PLAY_GPU=h100"}
	for _, row := range []struct {
		work          string
		within, least float64
	}{
		{"500", 3, 97}, {"500:w2", 3, 97}, {"5", 3, 97}, {"500:s8", 3, 97}, {"100,10000:data", 3, 95},
		{"50000", 3, 92},
		{"500:sync", 3, 97}, {"500:sync:w2", 3, 97}, {"500:sync:event", 3, 97}, {"500:sync:event:w2", 3, 97}, {"5:sync", 3, 97},
		// It asks each 20 µs whether the kernel has ended: an event in front of the next one costs a query.
		{"500:sync:poll", 6, 94}, {"500:sync:poll:w2", 6, 94},
		// The program's own events show the end of its work: the limiter's would cost as much again.
		{"5:sync:event", 3, 97}, {"5:sync:event:w2", 3, 97}, {"5:sync:event:poll", 3, 97}, {"5:s16:i64", 3, 97}, {"5:i64", 3, 97},
		{"20:s4:i64", 3, 97}, {"50:s16:i64", 3, 97}, {"500:s4:i64", 3, 97}, {"500:s8:i32", 3, 97}, {"100,1000:data:i16", 3, 97},
	} {
		alone := p.play(t, 1, "100:"+row.work)[0]
		for _, shares := range [][]float64{{10, 90}, {30, 70}, {50, 50}} {
			if shares[0] == 50 && strings.Contains(row.work, "poll") { // two that do the same at the same moment both have the turn
				continue
			}
			t.Run(fmt.Sprint(shares, " ", row.work), func(t *testing.T) {
				t.Parallel()
				seconds := 2
				if row.work == "50000" { // a kernel is 2.5 % of two
					seconds = 10
				}
				has := p.play(t, seconds, fmt.Sprintf("%g:%s", shares[0], row.work), fmt.Sprintf("%g:%s", shares[1], row.work))
				for i := range has {
					has[i] *= 100 / alone
					assert.InDelta(t, shares[i], has[i], row.within)
				}
				t.Logf("has %.1f, together %.1f", has, has[0]+has[1])
				assert.GreaterOrEqual(t, has[0]+has[1], row.least, "percent of what one has by itself")
			})
		}
	}
}

// A forced share is a part of what the program has by itself.
func TestPlayedForcedShares(t *testing.T) {
	p := newPlayer(t)
	for _, work := range []string{"5", "5:sync", "500", "500:sync", "500:s8", "50000", "50000:sync", "5,500,50000", "5,500,50000:sync", "100,10000:data"} {
		seconds := 5
		if strings.Contains(work, "50000") { // which are 1 % of five
			seconds = 20
		}
		t.Run(work, func(t *testing.T) {
			t.Parallel()
			alone := p.play(t, seconds, "100:"+work)[0]
			var worst float64
			for _, share := range []float64{5, 10, 25, 30, 50, 70, 90, 95} {
				has := 100 * p.play(t, seconds, fmt.Sprintf("%g:%s:force", share, work))[0] / alone
				assert.InDelta(t, share, has, 2)
				worst = max(worst, math.Abs(share-has))
			}
			t.Logf("%.1f points off at most", worst)
		})
	}
}
