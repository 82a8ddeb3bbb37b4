//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trace is what each container has had of the GPU by each millisecond, in ms.
func (p player) trace(tb testing.TB, seconds int, containers ...string) (had [][]float64) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "play-")
	require.NoError(tb, err)
	defer os.RemoveAll(dir)
	cmd := exec.Command(p.program, append([]string{p.box, dir, fmt.Sprint(seconds), "0"}, containers...)...)
	cmd.Env = append(os.Environ(), "PLAY_TRACE=1")
	text := &strings.Builder{}
	cmd.Stderr = text
	require.NoError(tb, cmd.Run())
	had = make([][]float64, len(containers))
	for line := range strings.Lines(text.String()) {
		var at, lag, limit, has float64
		var i int
		_, err := fmt.Sscanf(line, "%g %d lag %g cap %g had %g", &at, &i, &lag, &limit, &has)
		require.NoError(tb, err, line)
		had[i] = append(had[i], has)
	}
	return had
}

// A neighbour works for some time of each two seconds, more than its share, and is idle for the rest. Its share is in use by the other
// one 100 ms after its last work at most. It works again within a turn of 20 ms and the kernel that is running, and has had its
// share 100 ms later.
func TestPlayedIdleNeighbour(t *testing.T) {
	const period, turn, soon = 2000, 20, 100
	p := newPlayer(t)
	for _, test := range []struct {
		works, pauses string
		kernel        int // of the one that always works, in ms
	}{
		{"30:500", "70:500:b2000000/700000", 1}, {"70:500", "30:500:b2000000/300000", 1}, {"50:500:sync", "50:500:b2000000/500000", 1}, {"90:5", "10:500:b2000000/100000", 1},
		{"30:500", "70:5000:b2000000/700000", 1}, {"30:50000", "70:500:b2000000/700000", 50}, {"50:100,10000:data", "50:500:b2000000/500000", 10}, {"30:500:s8", "70:50:b2000000/700000", 1},
	} {
		t.Run(test.works+" beside "+test.pauses, func(t *testing.T) {
			t.Parallel()
			had := p.trace(t, 16, test.works, test.pauses)
			works, pauses := had[0], had[1]
			var share float64
			_, err := fmt.Sscanf(test.pauses, "%g:", &share)
			require.NoError(t, err)
			var used, back int
			least := 100.
			for begin := period; begin+period < len(pauses); begin += period {
				end := begin
				for at := begin; at < begin+period; at++ {
					if pauses[at] > pauses[at-1] {
						end = at
					}
				}
				free := end
				for ; works[free+10]-works[free] < 9.7; free++ {
					require.Less(t, free, begin+period, "the share of the idle one is never used")
				}
				first := begin
				for ; pauses[first] == pauses[begin]; first++ {
				}
				used, back, least = max(used, free-end), max(back, first-begin), min(least, 100*(pauses[begin+soon+test.kernel]-pauses[begin])/soon)
			}
			t.Logf("used by the other after %d ms, back after %d ms, %.0f %% of the first %d ms", used, back, least, soon)
			assert.LessOrEqual(t, used, soon)
			assert.LessOrEqual(t, back, turn+test.kernel)
			assert.GreaterOrEqual(t, least, share-5)
		})
	}
}

// A kernel that does not end has what the driver gives it. The three others keep their ratio to each other.
func TestPlayedKernelWithoutEnd(t *testing.T) {
	p := newPlayer(t)
	for _, containers := range []string{"10:1e10 20:500 30:500 40:500", "10:1e10:sync 20:2000 30:500:sync 40:500", "10:1e10 20:100,10000:data 30:50000 40:2000", "5:1e10 20:50000 30:50000 40:50000:sync"} {
		t.Run(containers, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 20, strings.Fields(containers)...)
			t.Logf("has %.1f", has)
			others := has[1] + has[2] + has[3]
			for i, share := range []float64{20, 30, 40} {
				assert.InDelta(t, 100*share/90, 100*has[i+1]/others, 3, "%.1f", has)
			}
			assert.GreaterOrEqual(t, has[0]+others, 97., "what all have of the GPU")
		})
	}
}

// Containers that write that they have a kernel without an end, and that they have the turn, take little of another one's share.
func TestPlayedForgedDebts(t *testing.T) {
	p := newPlayer(t)
	for _, containers := range []string{"20:500 40:500:lies 40:500:lies:owes", "20:500 30:500 50:500:lies:owes", "10:500 30:500:sync 60:500:lies:owes"} {
		t.Run(containers, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 20, strings.Fields(containers)...)
			for i, container := range strings.Fields(containers) {
				var share float64
				_, err := fmt.Sscanf(container, "%g:", &share)
				require.NoError(t, err)
				if !strings.Contains(container, "lies") {
					assert.GreaterOrEqual(t, has[i], share-2, "%.1f", has)
				}
			}
		})
	}
}

// Many of them delay a container that begins, or comes back from a pause, no more than two do.
func TestPlayedManyForgedDebts(t *testing.T) {
	p := newPlayer(t)
	for container, least := range map[string]float64{"20:500:from=1": 90, "20:500:from=1:g150000:b1/50000": 24} {
		t.Run(container, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 2, append([]string{container}, slices.Repeat([]string{"10:500:lies:owes"}, 8)...)...)
			assert.GreaterOrEqual(t, has[0], least, "%.1f", has)
		})
	}
}
