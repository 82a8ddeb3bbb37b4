//go:build root

package limiter_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// The tests of shares measure the GPU's time by the simulated driver's clock: how long calls take does not matter.

// sharing is a container that has a share of the first GPU's compute time.
func sharing(tb testing.TB, state, group string, percent uint32, policy limiter.Policy) *container {
	tb.Helper()
	c := newContainer(tb, state, gpu{gpuIDs[0], 8 * giB})
	c.group = group
	c.share(tb, percent, policy)
	return c
}

// share gives the container another share while it runs.
func (c *container) share(tb testing.TB, percent uint32, policy limiter.Policy) {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	for i := range limits.Devices {
		limits.Devices[i].CorePercent, limits.Devices[i].Policy = percent, policy
	}
	require.NoError(tb, limiter.UpdateLimits(c.dir, limits))
	if c.node != nil {
		c.node.write(tb)
	}
}

func (c *container) cores(tb testing.TB) limiter.CoreUsage {
	tb.Helper()
	usage, err := limiter.ReadCoreUsage(c.usage())
	require.NoError(tb, err)
	return usage[0]
}

// busy is the time of GPU 0 that the container has had in all, in seconds.
func (c *container) busy(tb testing.TB) float64 {
	tb.Helper()
	return c.busyOn(tb, 0)
}

func (c *container) busyOn(tb testing.TB, index int) float64 {
	tb.Helper()
	_, busy := c.worked(tb, index)
	return float64(busy) / 1e9
}

// worked is a GPU's clock, and how long the container has had the GPU by then, in ns.
func (c *container) worked(tb testing.TB, index int) (clock, busy uint64) {
	tb.Helper()
	s := c.truth(tb)
	for _, g := range s.Groups {
		for _, one := range g.GPUs {
			if fmt.Sprint(g.ID) == c.group && one.Index == index {
				busy = one.BusyNs
			}
		}
	}
	return s.GPUs[index].ClockNs, busy
}

// ran is the output of testdata/pace.c.
type ran struct {
	launches, busy, wall, longest uint64
}

// percent is the part of the GPU's time that it had.
func (r ran) percent() float64 { return 100 * float64(r.busy) / float64(r.wall) }

// due is what a container must have of the GPU's time, in percent.
type due struct {
	c      *container
	share  float64
	least  float64 // 0: two fifths of the share
	what   string
	counts bool // the limiter's count must be right, too
	// At the beginning of a period.
	clock, busy, counted uint64
}

// windows is how many periods holdShares looks at, until one is as it should be.
const windows = 10

// holdShares measures periods, of the GPU's clock, until one in which all of the containers have what is due at once. In no period
// has a container more than its share. It can have less while the machine's own processors have no time for the launcher, which
// is not the limiter's doing, so there are several periods: BenchmarkShare has the exact figures, of a machine at rest.
func holdShares(tb testing.TB, period time.Duration, dues ...*due) {
	tb.Helper()
	for _, d := range dues { // a GPU has no clock before the first launch
		eventually(tb, time.Minute, d.what+": it works", func() bool { return d.c.busy(tb) > 0 })
	}
	for window := range windows {
		for _, d := range dues {
			d.clock, d.busy = d.c.worked(tb, 0)
			d.counted = d.c.cores(tb).BusyNanoseconds
		}
		time.Sleep(period)
		var short []string
		for _, d := range dues {
			clock, busy := d.c.worked(tb, 0)
			got := 100 * float64(busy-d.busy) / float64(clock-d.clock)
			require.LessOrEqual(tb, got, d.share+5, d.what)
			if got <= max(d.least, d.share*0.4) {
				short = append(short, fmt.Sprintf("%s: %.1f %% of a share of %v %%", d.what, got, d.share))
			}
			// A program that learns late that its work has ended has the GPU until then.
			if counted := float64(d.c.cores(tb).BusyNanoseconds-d.counted) / float64(busy-d.busy); d.counts && math.Abs(counted-1) > 0.3 {
				short = append(short, fmt.Sprintf("%s: %.2f of the time that it took is counted", d.what, counted))
			}
		}
		if short == nil {
			return
		}
		tb.Logf("period %d of %d: %s", window+1, windows, strings.Join(short, "; "))
	}
	require.FailNow(tb, "there is no period in which all have their share")
}

// forever is a number of seconds for start: until the test ends the program.
const forever = 1000

func pace(tb testing.TB) string {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), "pace")
	require.NoError(tb, compile(program, "testdata/pace.c", "-pthread", filepath.Join(built, "sim", "libcuda.so.1")))
	return program
}

// start runs testdata/pace.c; the answer comes when it has ended.
func (c *container) start(tb testing.TB, program string, seconds float64, how, kernels string, more ...string) (*exec.Cmd, <-chan ran) {
	tb.Helper()
	cmd := c.command(program, append([]string{fmt.Sprint(seconds), how, kernels}, more...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // autogroups: each session has its part of the processors
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() { cmd.Process.Kill() })
	done := make(chan ran, 1)
	go func() {
		var r ran
		fmt.Fscan(out, &r.launches, &r.busy, &r.wall, &r.longest)
		cmd.Wait()
		done <- r
	}()
	return cmd, done
}

type paced struct {
	percent      uint32
	how, kernels string
}

// A share holds for kernels of any length, for programs that wait for each kernel and
// for such that wait for none. Four at a time: more keep the machine from waking one that waits.
func TestShare(t *testing.T) {
	testShares(t, paced{10, "async", "500"}, paced{30, "sync", "500"}, paced{50, "async", "20"}, paced{70, "queue", "500"})
	testShares(t, paced{90, "async", "500"}, paced{30, "async", "5,500,5000"}, paced{50, "sync", "50000"}, paced{30, "async", "50000"})
}

// Each has a machine of its own.
func testShares(t *testing.T, programs ...paced) {
	t.Helper()
	program := pace(t)
	var dues []*due
	var ends []func() ran
	for _, r := range programs {
		c := sharing(t, newMachine(t, "H200"), "7", r.percent, limiter.PolicyForce)
		cmd, done := c.start(t, program, forever, r.how, r.kernels)
		dues = append(dues, &due{c: c, share: float64(r.percent), what: fmt.Sprintf("%d %% %s %s", r.percent, r.how, r.kernels), counts: true})
		ends = append(ends, func() ran { require.NoError(t, cmd.Process.Signal(syscall.SIGTERM)); return <-done })
	}
	holdShares(t, 4*time.Second, dues...)
	for i, d := range dues {
		eventually(t, waitLong, d.what+" waits for its share", func() bool { return d.c.cores(t).ThrottledNanoseconds > 0 })
		got, usage := ends[i](), d.c.cores(t)
		assert.LessOrEqual(t, usage.Launches, got.launches, d.what)
	}
}

// It is the container's share, however many processes and threads it has.
func TestShareIsTheContainers(t *testing.T) {
	program := pace(t)
	for _, turns := range []bool{true, false} {
		shareIsTheContainers(t, program, turns)
	}
}

func shareIsTheContainers(t *testing.T, program string, turns bool) {
	t.Helper()
	c := sharing(t, newMachine(t, "H200"), "7", 30, limiter.PolicyForce)
	if turns {
		takeTurns(t, c)
	}
	var processes []*exec.Cmd
	for range 3 {
		cmd, _ := c.start(t, program, forever, "sync", "300", "4")
		processes = append(processes, cmd)
	}
	holdShares(t, 3*time.Second, &due{c: c, share: 30, what: fmt.Sprintf("three processes, turn files %v", turns)})
	eventually(t, time.Minute, "none of them starves", func() bool {
		var had []uint64
		for _, process := range c.truth(t).Clients {
			had = append(had, process.GPUs[0].BusyNs)
		}
		return len(had) == 3 && slices.Min(had) > slices.Max(had)/3
	})
	for _, cmd := range processes {
		require.NoError(t, cmd.Process.Kill())
	}
}

// A container that writes noise over its words, without end, takes nothing of a share beside it, and is held to its own by
// what each of its processes accounts for itself.
func TestShareUnderNoiseInTheWords(t *testing.T) {
	program := pace(t)
	for _, how := range []string{"async", "sync"} {
		state := newMachine(t, "H200")
		c, neighbour := sharing(t, state, "1", 20, limiter.PolicyForce), sharing(t, state, "2", 80, limiter.PolicyDefault)
		takeTurns(t, c, neighbour)
		ctx, cancel := context.WithCancel(context.Background())
		c.start(t, program, forever, how, "500")
		neighbour.start(t, program, forever, how, "500")
		file, err := os.OpenFile(c.turnFile(t, 0), os.O_WRONLY, 0)
		require.NoError(t, err)
		written := make(chan error)
		go func() {
			noise := make([]byte, turnBytes-offTurnWords)
			for ctx.Err() == nil && err == nil {
				for i := range noise {
					noise[i] = byte(rand.Uint32())
				}
				_, err = file.WriteAt(noise, offTurnWords)
			}
			written <- err
		}()
		// It is never above 25 % in what follows: the neighbour has the rest, as far as its launcher can use it.
		least := map[string]float64{"async": 70, "sync": 40}[how]
		holdShares(t, 3*time.Second, &due{c: neighbour, share: 100, least: least, what: how + ", the neighbour"})
		from, had := c.worked(t, 0)
		time.Sleep(3 * time.Second)
		to, has := c.worked(t, 0)
		require.LessOrEqual(t, 100*float64(has-had)/float64(to-from), 25.0, how)
		cancel()
		require.NoError(t, <-written)
		require.NoError(t, file.Close())
	}
}

func TestSharesOfTwo(t *testing.T) {
	program := pace(t)
	for _, test := range []struct {
		a, b         uint32
		how, kernels string
	}{{30, 70, "async", "500"}, {10, 90, "async", "500"}, {50, 50, "queue", "500"}} {
		state := newMachine(t, "H200")
		var dues []*due
		a, b := sharing(t, state, "1", test.a, limiter.PolicyForce), sharing(t, state, "2", test.b, limiter.PolicyForce)
		takeTurns(t, a, b)
		for c, share := range map[*container]uint32{a: test.a, b: test.b} {
			c.start(t, program, forever, test.how, test.kernels)
			dues = append(dues, &due{c: c, share: float64(share), what: fmt.Sprint(test)})
		}
		holdShares(t, 3*time.Second, dues...)
	}
}

// What each policy gives a container that is next to one without work.
func TestPolicies(t *testing.T) {
	program := pace(t)
	var dues []*due
	for name, r := range map[string]struct {
		percent uint32
		policy  limiter.Policy
		soft    uint32
		turns   bool
		want    float64
	}{
		"default":             {30, limiter.PolicyDefault, 0, true, 99},
		"default, no turns":   {30, limiter.PolicyDefault, 0, false, 30},
		"force":               {30, limiter.PolicyForce, 0, true, 30},
		"disabled":            {30, limiter.PolicyDisable, 0, true, 99},
		"disabled, no turns":  {30, limiter.PolicyDisable, 0, false, 99},
		"no share":            {0, limiter.PolicyForce, 0, true, 99},
		"no share, no turns":  {0, limiter.PolicyForce, 0, false, 99},
		"soft":                {30, limiter.PolicyDefault, 60, true, 60},
		"soft, no turns":      {30, limiter.PolicyForce, 60, false, 60},
		"soft, the whole GPU": {30, limiter.PolicyForce, 100, true, 99},
	} {
		state := newMachine(t, "H200")
		d := &due{c: sharing(t, state, "7", r.percent, r.policy), share: r.want, what: name}
		if r.want > 90 {
			d.least = 65 // more than any share here
		}
		limits, err := limiter.ReadLimits(d.c.limits())
		require.NoError(t, err)
		limits.Devices[0].CoreSoftPercent = r.soft
		require.NoError(t, limiter.UpdateLimits(d.c.dir, limits))
		if r.turns {
			takeTurns(t, d.c, sharing(t, state, "8", 70, limiter.PolicyDefault))
		}
		d.c.start(t, program, forever, "queue", "2000")
		dues = append(dues, d)
	}
	holdShares(t, 4*time.Second, dues...)
}

// Four processes of a container without a share take nothing of a share of 80 % beside it,
// and have all that it leaves.
func TestShareHoldsBesideContainerWithoutShare(t *testing.T) {
	program := pace(t)
	state := newMachine(t, "H200")
	sharer, other := sharing(t, state, "1", 80, limiter.PolicyDefault), sharing(t, state, "2", 0, limiter.PolicyDefault)
	takeTurns(t, sharer, other)
	for range 4 {
		other.start(t, program, forever, "queue", "2000")
	}
	sharer.start(t, program, forever, "queue", "2000")
	holdShares(t, 5*time.Second, &due{c: sharer, share: 80, least: 75, what: "the share"}, &due{c: other, share: 30, least: 10, what: "the container without one"})
}

// A process that has used less than an idle container may use at once is not throttled.
func TestNoStallAtTheStart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "begins")
	require.NoError(t, compile(program, "testdata/begins.c", "-D_GNU_SOURCE", "-rdynamic"))
	sim := fakeDriver(t)
	for kernels, launches := range map[string]int{"5": 3000, "500": 30, "5 10 20 50 100 200 500": 119} {
		c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
		c.sim = sim
		lines, stderr := c.run(t, program, strings.Fields(kernels)...)
		assert.Empty(t, stderr)
		assert.Equal(t, []string{fmt.Sprint("launches ", launches)}, lines, "kernels of %s µs: no time but theirs passes", kernels)
		assert.NotZero(t, c.cores(t).BusyNanoseconds, kernels)
		assert.Zero(t, c.cores(t).ThrottledNanoseconds, "kernels of %s µs", kernels)
	}
}

// Running programs follow new limits: one that sleeps off a debt wakes up, and one
// that was free is held back.
func TestShareChangesWhileItRuns(t *testing.T) {
	program := pace(t)
	c, deep := sharing(t, newMachine(t, "H200"), "7", 1, limiter.PolicyForce), sharing(t, newMachine(t, "H200"), "7", 1, limiter.PolicyForce)
	c.start(t, program, forever, "sync", "200000")     // each costs 20 s of its share,
	deep.start(t, program, forever, "sync", "1000000") // each 100 s: more than this test waits
	for _, one := range []*container{c, deep} {
		one.waitsForItsShare(t)
		had := one.busy(t)
		one.share(t, 0, limiter.PolicyForce)
		eventually(t, waitLong, "it does not sleep on", func() bool { return one.busy(t) > had+1 })
	}
	c.share(t, 20, limiter.PolicyForce)
	waited := c.cores(t).ThrottledNanoseconds
	eventually(t, waitLong, "it is held back", func() bool { return c.cores(t).ThrottledNanoseconds > waited })
	holdShares(t, 8*time.Second, &due{c: c, share: 20, what: "a share while it runs"})
}

func (c *container) waitsForItsShare(t *testing.T) {
	t.Helper()
	eventually(t, waitLong, "it has a debt", func() bool { return c.cores(t).BusyNanoseconds >= uint64(100*time.Millisecond) })
	last, grown := c.cores(t), 0
	eventually(t, waitLong, "a wait is counted while it lasts", func() bool {
		now := c.cores(t)
		if now.Launches != last.Launches {
			grown = 0
		} else if now.ThrottledNanoseconds > last.ThrottledNanoseconds {
			grown++
		}
		last = now
		return grown >= 3
	})
}

// Processes that are killed at any moment neither stop the others nor give them more.
func TestShareUnderKills(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 40, limiter.PolicyForce)
	takeTurns(t, c)
	running := make([]*exec.Cmd, 6)
	launch := func(i int) {
		running[i], _ = c.start(t, program, forever, []string{"sync", "async", "queue"}[i%3], "500")
	}
	for i := range running {
		launch(i)
	}
	eventually(t, time.Minute, "they work", func() bool { return c.busy(t) > 0.1 })
	from, had := c.worked(t, 0)
	clock, busy, kills := from, had, 0
	for clock-from < uint64(5*time.Second) {
		i := rand.IntN(len(running))
		require.NoError(t, running[i].Process.Kill())
		launch(i)
		kills++
		time.Sleep(time.Duration(10+rand.IntN(40)) * time.Millisecond)
		clock, busy = c.worked(t, 0)
	}
	got := 100 * float64(busy-had) / float64(clock-from)
	t.Logf("%d kills, %.1f %%", kills, got)
	assert.Less(t, got, 48.0)
	for _, cmd := range running {
		require.NoError(t, cmd.Process.Kill())
	}
	c.start(t, program, forever, "sync", "500")
	holdShares(t, 2*time.Second, &due{c: c, share: 40, what: "a later process has the whole share"})
}

// A stopped process keeps its place in the queue, and takes no other place.
func TestStoppedLauncherDelaysNoProcess(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 40, limiter.PolicyForce)
	takeTurns(t, c)
	for range 3 {
		had := c.busy(t)
		cmd, _ := c.start(t, program, forever, "sync", "500", "2")
		eventually(t, time.Minute, "it works", func() bool { return c.busy(t) > had+0.05 })
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	}
	c.start(t, program, forever, "sync", "500")
	holdShares(t, 2*time.Second, &due{c: c, share: 40, what: "beside stopped processes"})
}

// What is launched into a capture does not run: it costs nothing, waits for nothing,
// and nothing of the library's own is called that would break the capture. Launches
// elsewhere wait as ever.
func TestCaptureIsLeftAlone(t *testing.T) {
	program := filepath.Join(t.TempDir(), "captures")
	require.NoError(t, compile(program, "testdata/captures.c", "-D_GNU_SOURCE", "-rdynamic", "-pthread"))
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Equal(t, []string{"begin 0", "captured 50000", "nested 401", "end of another 401", "end 0", "broken 0", "launched 50008"}, lines)
	assert.Empty(t, stderr)
	usage := c.cores(t)
	// 15 kernels of 20 ms did run, of which the last one or two have no look after them.
	assert.InDelta(t, float64(280*time.Millisecond), float64(usage.BusyNanoseconds), float64(25*time.Millisecond))
	assert.NotZero(t, usage.ThrottledNanoseconds)
}

// A stream can stand still, for example behind a kernel that waits for another process. It delays the process
// that launches more into it, for a while, and no other process.
func TestStillStreamDelaysNoProcess(t *testing.T) {
	program := filepath.Join(t.TempDir(), "still")
	require.NoError(t, compile(program, "testdata/still.c", "-D_GNU_SOURCE", "-rdynamic"))
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyDefault)
	takeTurns(t, c)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"another 0", "still 300"}, lines, "ms that the longest launch took")
}
