//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// player is testdata/turns/play.c: containers on a played clock, with the limiter's own sources.
type player struct {
	dir          string
	program, box string
	costs        []string // variables of the environment: on which GPU; none: one on which only kernels and launches take time
}

func newPlayer(tb testing.TB) player {
	tb.Helper()
	p := player{dir: tb.TempDir()}
	source := filepath.Join(root, "limiter", "src")
	box := []string{"-include", "testdata/turns/played.h", "testdata/turns/box.c"}
	for _, name := range []string{"lag", "turn", "turnstate", "turnends", "flightmarks", "flightstreams", "flightends", "recorded", "events", "duration", "table", "peers", "paths", "crc32", "pace", "gaps", "ceiling"} {
		box = append(box, filepath.Join(source, name+".c"))
	}
	p.program = p.build(tb, "play", "-rdynamic", "testdata/turns/play.c", "testdata/turns/gpu.c", filepath.Join(source, "crc32.c"), "-ldl")
	return p.with(tb, "box.so", box...)
}

func (p player) build(tb testing.TB, name string, args ...string) (out string) {
	tb.Helper()
	out = filepath.Join(p.dir, name)
	text, err := exec.Command("cc", append([]string{"-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-o", out,
		"-iquote", filepath.Join(root, "limiter", "src"), "-iquote", "testdata/turns"}, args...)...).CombinedOutput()
	require.NoError(tb, err, "%s", text)
	return out
}

// with has each process load another limiter.
func (p player) with(tb testing.TB, name string, args ...string) player {
	tb.Helper()
	p.box = p.build(tb, name, append([]string{"-shared", "-fPIC", "-fvisibility=hidden"}, args...)...)
	return p
}

// play is what each container has of the GPU, in percent.
func (p player) play(tb testing.TB, seconds int, containers ...string) (percents []float64) {
	tb.Helper()
	return p.playWithStalls(tb, seconds, 0, containers...)
}

// playWithStalls plays processes that often stand still, as where too few processors are.
func (p player) playWithStalls(tb testing.TB, seconds, stalls int, containers ...string) (percents []float64) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "play-") // a test's own is named like it, with all its signs
	require.NoError(tb, err)
	defer os.RemoveAll(dir)
	cmd := exec.Command(p.program, append([]string{p.box, dir, fmt.Sprint(seconds), fmt.Sprint(stalls)}, containers...)...)
	cmd.Env = append(os.Environ(), p.costs...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(tb, err)
	for _, text := range strings.Fields(string(out)) {
		var percent float64
		_, err := fmt.Sscan(text, &percent)
		require.NoError(tb, err)
		percents = append(percents, percent)
	}
	require.Len(tb, percents, len(containers))
	return percents
}

// Shares hold for kernels of any length, in any number of streams and processes, waited for or not, and whatever decides how long
// they take: 3 points at most, 5 with kernels of 2 s over a minute. The clock is played, so each run is the same.
func TestPlayedShares(t *testing.T) {
	p := newPlayer(t)
	kinds := []struct {
		a, b    string
		seconds int
		within  float64
	}{
		{"500", "500", 6, 3}, {"5", "500", 6, 3}, {"500", "5", 6, 3}, {"5", "5", 6, 3}, {"500:s8", "500", 6, 3}, {"500", "500:s8", 6, 3},
		{"500:s16", "5:s2", 6, 3.5}, // 16 streams use the GPU longer than is known
		{"500:sync", "500", 6, 3}, {"500", "500:sync", 6, 3}, {"20:sync", "500", 6, 3},
		{"500:sync:event", "500", 6, 3}, {"500", "500:sync:event", 6, 3}, {"100,5000:data:sync:event", "500", 6, 3},
		{"500:sync:poll", "500", 6, 3}, {"500", "500:sync:poll", 6, 3}, {"50000:sync:poll", "500", 6, 3},
		{"100,5000:data:sync:poll", "500", 6, 3},
		{"50000", "500", 6, 3}, {"500", "50000", 6, 3}, {"50000:sync", "50000:sync", 6, 3}, {"50000:s4", "500", 6, 3},
		{"100,5000:data", "500", 6, 3}, {"100,5000:data:sync", "500", 6, 3}, {"100,100,100,10000:data", "500", 6, 3},
		{"100,5000", "500", 6, 3}, {"5,20,100,3000", "500", 6, 3.5},
		{"500", "500:p3", 6, 3}, {"500:p3:sync", "500", 6, 3},
		{"2000000", "500", 60, 5}, {"2000000:sync", "500", 60, 5}, {"500", "2000000", 60, 5}, {"2000000:sync:poll", "500", 60, 5}, {"2000000:sync:event", "500", 60, 5}, {"2000000", "2000000", 60, 5},
	}
	for _, pair := range [][2]int{{10, 90}, {30, 70}, {50, 50}} {
		for _, kind := range kinds {
			name := fmt.Sprintf("%d:%s beside %d:%s", pair[0], kind.a, pair[1], kind.b)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				has := p.play(t, kind.seconds, fmt.Sprintf("%d:%s", pair[0], kind.a), fmt.Sprintf("%d:%s", pair[1], kind.b))
				t.Logf("has %.1f", has)
				for i, percent := range has {
					assert.InDelta(t, pair[i], percent, kind.within)
				}
				assert.GreaterOrEqual(t, has[0]+has[1], 97., "what both have of the GPU")
			})
		}
	}
}

// Shares hold also where processes stand still for up to 31 ms, ten times in a second each: what one misses is not taken for its own
// by all others.
func TestPlayedStalls(t *testing.T) {
	p := newPlayer(t)
	for _, containers := range []string{"10:2000 20:2000 30:2000 40:2000", "30:500 70:500", "30:500:sync 70:500", "50:500:sync 50:500"} {
		t.Run(containers, func(t *testing.T) {
			t.Parallel()
			has, sum := p.playWithStalls(t, 20, 5, strings.Fields(containers)...), 0.
			requireShares(t, containers, has, 5)
			for _, percent := range has {
				sum += percent
			}
			assert.GreaterOrEqual(t, sum, 95., "what all have of the GPU")
		})
	}
}

// What a program does with its events hides none of its time: they are recorded again in a stream without work, destroyed, and asked for.
func TestPlayedEventsHideNothing(t *testing.T) {
	p := newPlayer(t)
	for _, containers := range []string{
		"30:500:tricks 70:500", "30:5:tricks 70:500", "10:20:tricks 90:500", "30:100,5000:data:tricks 70:5", "30:50000:tricks 70:500",
		"50:5:tricks:s4 50:5:i64", "10:500:tricks 20:5:tricks 70:500:sync:event",
	} {
		t.Run(containers, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 6, strings.Fields(containers)...)
			t.Logf("has %.1f", has)
			for i, container := range strings.Fields(containers) {
				var share float64
				_, err := fmt.Sscanf(container, "%g:", &share)
				require.NoError(t, err)
				if strings.Contains(container, "tricks") { // and waits for much of it
					assert.LessOrEqual(t, has[i], share+3, "%v", has)
				} else {
					assert.GreaterOrEqual(t, has[i], share-3, "%v", has)
				}
			}
		})
	}
}

// Without turn files the share is a ceiling, of all of a container's processes together, and is used.
func TestPlayedCeilingWithoutTurns(t *testing.T) {
	p := newPlayer(t)
	for _, test := range []struct {
		containers string
		want       []float64
		within     float64
	}{
		{"30:500:blind", []float64{30}, 1}, {"30:500:p2:blind", []float64{30}, 2}, {"30:500:p3:blind", []float64{30}, 2},
		{"30:500:p8:blind", []float64{30}, 3}, {"30:500:p12:blind", []float64{30}, 4}, {"10:500:p3:blind", []float64{10}, 2},
		{"30:5:p3:blind", []float64{30}, 3}, {"30:500:p3:sync:blind", []float64{30}, 3}, {"30:500:p3:s4:blind", []float64{30}, 2},
		{"30:100,5000:data:p3:blind", []float64{30}, 3}, {"30:50000:p3:blind", []float64{30}, 4}, {"70:500:p4:blind", []float64{70}, 3},
		{"30:500:p3:sync:g1000:blind", []float64{30}, 3}, {"30:500:p3:b50000/10000:blind", []float64{30}, 3},
		{"60:500:p2:b50000/10000:blind", []float64{40}, 4},
	} {
		t.Run(test.containers, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 20, strings.Fields(test.containers)...)
			t.Logf("has %.1f", has)
			for i, percent := range has {
				assert.InDelta(t, test.want[i], percent, test.within)
			}
		})
	}
}

// A container without turn files owes what its ended processes used beyond its share, and idle time pays it back.
func TestCeilingOfEndedProcesses(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ceiling")
	source := filepath.Join(root, "limiter", "src")
	require.NoError(t, compile(program, "testdata/ceiling.c", "-std=c11", "-I", source, filepath.Join(source, "ceiling.c")))
	for _, test := range []struct {
		idle, cap string // seconds, and what the next process may use in ms
	}{{"1", "-9700"}, {"9", "-7300"}, {"20", "-4000"}, {"30", "-1000"}, {"33", "-100"}, {"34", "15"}, {"3600", "15"}, {"100000000", "15"}} {
		out, err := exec.Command(program, test.idle).CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Equal(t, test.cap, strings.TrimSpace(string(out)), "after %s s", test.idle)
	}
}

// Two containers with the same lag that look at the same moment both take the turn. One gives it back with its next look.
func TestTurnTakenTwice(t *testing.T) {
	program := filepath.Join(t.TempDir(), "twins")
	source := filepath.Join(root, "limiter", "src")
	require.NoError(t, compile(program, "testdata/twins.c", "-std=c11", "-I", source, filepath.Join(source, "lag.c")))
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, []string{"1 1", "1 0", "1 0"}, strings.Split(strings.TrimSpace(string(out)), "\n"))
}

// More than a container can follow: then each keeps to its share.
func TestPlayedCrowd(t *testing.T) {
	containers := []string{"10:500"}
	for range 68 {
		containers = append(containers, "1:500:from=1000")
	}
	has := newPlayer(t).play(t, 6, append(containers, "20:500")...)
	assert.InDelta(t, 10, has[0], 3)
	assert.InDelta(t, 20, has[len(has)-1], 3)
}

// The same for a minute: small errors of the account do not add up.
func TestPlayedMinute(t *testing.T) {
	p := newPlayer(t)
	for _, containers := range []string{"10:100,5000:data 20:500:s8 70:500:sync", "10:2000 20:2000 30:2000 40:2000", "30:500:sync 70:500"} {
		t.Run(containers, func(t *testing.T) {
			t.Parallel()
			requireShares(t, containers, p.play(t, 60, strings.Fields(containers)...), 3)
		})
	}
}

// requireShares requires that each container has its share, the first number of its words.
func requireShares(tb testing.TB, containers string, has []float64, within float64) {
	tb.Helper()
	tb.Logf("has %.1f", has)
	for i, container := range strings.Fields(containers) {
		var share float64
		_, err := fmt.Sscanf(container, "%g:", &share)
		require.NoError(tb, err)
		assert.InDelta(tb, share, has[i], within, "%v", has)
	}
}

// One that pauses between its kernels, for however long, leaves another its share.
func TestPlayedPauses(t *testing.T) {
	p := newPlayer(t)
	for _, shares := range [][2]int{{30, 70}, {50, 50}, {70, 30}} {
		for _, us := range []int{100, 200, 300, 400, 500, 520, 600, 700, 1000, 2000, 4000, 6000} {
			t.Run(fmt.Sprintf("%d %d us", shares, us), func(t *testing.T) {
				t.Parallel()
				has := p.play(t, 6, fmt.Sprintf("%d:500:sync:g%d", shares[0], us), fmt.Sprintf("%d:500", shares[1]))
				t.Logf("has %.1f", has)
				assert.GreaterOrEqual(t, has[1], float64(shares[1])-3)
				if us >= 300 { // not in the pauses of one that keeps its turn
					assert.GreaterOrEqual(t, has[0]+has[1], 75., "what both have of the GPU")
				}
			})
		}
	}
}

// One that launches slowly leaves gaps in its turn. Others use them, and it has more of the GPU for that, too.
func TestPlayedGaps(t *testing.T) {
	p := newPlayer(t)
	for _, test := range []struct {
		containers  string
		least, most []float64
	}{
		{"50:5:g20 50:500", []float64{12.5, 80}, []float64{25, 100}},
		{"50:5:g50 50:500", []float64{5.5, 87}, []float64{25, 100}},
		{"50:20:g50 50:500", []float64{21, 70}, []float64{30, 100}},
		{"50:50:g100 50:500", []float64{27, 62}, []float64{36, 100}},
		{"30:5:g100 70:500", []float64{1.6, 90}, []float64{3, 100}},
		{"70:5:g100 30:500", []float64{3.8, 90}, []float64{5, 100}},
		{"50:5:g20 50:100,5000:data", []float64{12, 75}, []float64{25, 100}},
		{"40:50:g100 30:20 30:500", []float64{21, 29, 29}, []float64{30, 60, 60}},
		{"50:5:g50 50:500:sync", []float64{4.5, 75}, []float64{25, 100}},
		// It has the GPU for most of its turn.
		{"50:100:g150 50:5", []float64{31, 48}, []float64{40, 60}},
		{"70:100:g150 30:20", []float64{45, 28}, []float64{50, 40}},
		{"70:50:g50 30:20", []float64{66, 27}, []float64{73, 34}},
		// It waits for its kernels.
		{"30:100,5000:data:sync:poll:g300 70:100", []float64{27, 67}, []float64{33, 73}},
		{"50:5:sync:g100 50:500", []float64{2, 47}, []float64{5, 57}},
		// Those with a ceiling, or of low priority, do not use gaps.
		{"30:5:g50 30:500:force", []float64{6, 27}, []float64{15, 34}},
		{"30:5:g50 30:500:soft=50", []float64{4.5, 47}, []float64{15, 55}},
		{"30:5:g50 70:500:low", []float64{9, 0}, []float64{15, 8}},
		// It claims to have gaps, and has no work.
		{"20:500 30:500 50:500:lies:opens", []float64{20, 30, 0}, []float64{100, 100, 0}},
		{"20:500 30:500:sync:g500 50:500:lies:opens", []float64{20, 24, 0}, []float64{100, 100, 0}},
	} {
		t.Run(test.containers, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 6, strings.Fields(test.containers)...)
			t.Logf("has %.1f", has)
			for i, percent := range has {
				assert.GreaterOrEqual(t, percent, test.least[i], "%v", has)
				assert.LessOrEqual(t, percent, test.most[i], "%v", has)
			}
		})
	}
}

// What the rules give containers of other kinds. Want is in percent of the GPU, in the order of the containers.
func TestPlayedRules(t *testing.T) {
	p := newPlayer(t)
	for _, test := range []struct {
		name, containers string
		want             []float64
	}{
		{"three", "10:500 20:500 70:500", []float64{10, 20, 70}},
		{"three of other kinds", "10:5 20:50000 70:500", []float64{10, 20, 70}},
		{"three programs", "10:100,5000:data 20:500:s8 70:500:sync", []float64{10, 20, 70}},
		{"four", "10:500 20:5 30:50000 40:100,5000:data", []float64{10, 20, 30, 40}},
		{"five", "5:500 5:500 5:500 5:500 80:500", []float64{5, 5, 5, 5, 80}},
		{"the rest of idle shares", "30:500 30:500", []float64{50, 50}},
		{"no others", "30:500", []float64{100}},
		{"force", "30:500:force", []float64{30}},
		{"force, short", "30:5:force", []float64{30}},
		{"force, long", "30:50000:force", []float64{30}},
		{"force, waits", "30:500:sync:force", []float64{30}},
		{"force, data decides", "30:100,5000:data:force", []float64{30}},
		{"soft", "30:500:soft=60", []float64{60}},
		{"soft, contended", "30:500:soft=60 70:500", []float64{30, 70}},
		{"what one may not use is the others'", "30:500:soft=31 30:500", []float64{31, 69}},
		{"the same, of short kernels", "30:5:soft=31 30:500", []float64{31, 69}},
		{"the same, beside long kernels", "30:500:soft=31 30:50000", []float64{31, 69}},
		{"force beside force", "30:100,5000:data:force 30:5:force", []float64{30, 30}},
		{"force beside another", "30:500:force 70:50000", []float64{30, 70}},
		{"disabled", "30:500:disable", []float64{100}},
		{"no share beside a share", "0:500 80:500", []float64{20, 80}},
		{"two without a share", "0:500 0:500 80:500", []float64{10, 10, 80}},
		{"no shares", "0:500 0:500", []float64{50, 50}},
		{"low priority", "30:500:low 70:500", []float64{1, 99}},
		{"low priority without shares", "0:500:low 0:500", []float64{1, 99}},
		{"low priority beside pauses", "30:500:low 20:500:b50000/10000", []float64{80, 20}},
		{"one that pauses between its kernels", "50:500:sync:g100 50:500", []float64{40, 51}},
		{"one that pauses less", "50:500:sync:g50 50:500", []float64{44, 51}},
		{"one that pauses for longer", "50:500:sync:g1000 50:500", []float64{19, 78}},
		{"one that is idle at most times", "50:500:sync:g3000 50:500", []float64{11, 85}},
		{"training beside training", "30:500:b1/17000:g3000 70:500:b1/17000:g3000", []float64{30, 69}},
		{"training beside one that never pauses", "70:500:b1/17000:g3000 30:500", []float64{69, 30}},
		{"training beside serving, which has what it uses", "50:500:b1/17000:g3000 50:200:b30000/5000", []float64{71, 17}},
		{"training beside serving that wants more than its share", "70:500:b1/17000:g3000 30:200:b30000/10000", []float64{68, 28}},
		{"one that is idle half of the time", "50:500 50:500:b2000000/500000", []float64{75, 25}},
		{"one that pauses", "30:500:b50000/10000 70:500", []float64{20, 80}},
		{"beside one without turns", "30:500 70:500:earlier", []float64{30, 0}},
		{"two beside one without turns", "20:500 30:500:sync 50:500:earlier", []float64{20, 30, 0}},
		{"forged words take no share", "30:500 70:500:lies", []float64{30, 0}},
		{"forged words, with nearly all", "10:500 90:500:lies", []float64{10, 0}},
		{"forged words, with all but 1", "1:500 99:500:lies", []float64{1, 0}},
		{"forged debts", "30:500 70:500:lies:owes", []float64{97, 0}},
		{"small shares", "1:500 9:500 90:500", []float64{1, 9, 90}},
		{"two beside forged words", "20:500 30:500 50:500:lies", []float64{20, 30, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			has := p.play(t, 6, strings.Fields(test.containers)...)
			for i, percent := range has {
				assert.InDelta(t, test.want[i], percent, 3, "%v", has)
			}
		})
	}
}
