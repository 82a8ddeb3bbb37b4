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
	"github.com/gpuslice/gpuslice/limiter/feedback"
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
}

func (c *container) setCores(tb testing.TB, states ...limiter.CoreState) {
	tb.Helper()
	require.NoError(tb, limiter.UpdateCores(c.dir, states))
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
	c           *container
	share       float64
	least       float64 // 0: two fifths of the share
	what        string
	clock, busy uint64 // at the beginning of a period
}

// windows is how many periods holdShares looks at.
const windows = 5

// holdShares measures periods, of the GPU's clock, until one in which all of the containers have what is due at once. In no period
// has a container more than its share. It can have less while the machine's own processors have no time for the launcher, which
// is not the limiter's doing, so there are a few periods: BenchmarkShare has the exact figures, of a machine at rest.
func holdShares(tb testing.TB, period time.Duration, dues ...*due) {
	tb.Helper()
	for _, d := range dues { // a GPU has no clock before the first launch
		eventually(tb, time.Minute, d.what+": it works", func() bool { return d.c.busy(tb) > 0 })
	}
	for window := range windows {
		for _, d := range dues {
			d.clock, d.busy = d.c.worked(tb, 0)
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

// A share holds for kernels of any length, for programs that wait for each kernel and
// for such that wait for none.
func TestShare(t *testing.T) {
	program := pace(t)
	var dues []*due
	var ends []func() ran
	for _, r := range []struct {
		percent      uint32
		how, kernels string
	}{
		{10, "async", "500"}, {30, "sync", "500"}, {50, "async", "20"}, {70, "queue", "500"}, {90, "async", "500"},
		{30, "async", "5,500,5000"}, {50, "sync", "50000"}, {30, "async", "50000"},
	} { // each on a machine of its own, all at once
		c := sharing(t, newMachine(t, "H200"), "7", r.percent, limiter.PolicyForce)
		cmd, done := c.start(t, program, forever, r.how, r.kernels)
		dues = append(dues, &due{c: c, share: float64(r.percent), what: fmt.Sprintf("%d %% %s %s", r.percent, r.how, r.kernels)})
		ends = append(ends, func() ran { require.NoError(t, cmd.Process.Signal(syscall.SIGTERM)); return <-done })
	}
	holdShares(t, 4*time.Second, dues...)
	for i, d := range dues {
		got, usage := ends[i](), d.c.cores(t)
		assert.NotZero(t, usage.ThrottledNanoseconds, d.what)
		assert.LessOrEqual(t, usage.Launches, got.launches, d.what)
		assert.InEpsilon(t, float64(got.busy), float64(usage.ChargedNanoseconds), 0.3, "%s: what is charged is what it took", d.what)
	}
}

// It is the container's share, however many processes and threads it has.
func TestShareIsTheContainers(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 30, limiter.PolicyForce)
	for range 3 {
		c.start(t, program, forever, "sync", "300", "4")
	}
	holdShares(t, 3*time.Second, &due{c: c, share: 30, what: "three processes"})
	eventually(t, time.Minute, "none of them starves", func() bool {
		var had []uint64
		for _, process := range c.truth(t).Clients {
			had = append(had, process.GPUs[0].BusyNs)
		}
		return len(had) == 3 && slices.Min(had) > slices.Max(had)/3
	})
}

// Another program of the container writes noise over the buckets of the usage file, without end. The
// process is held to the share by what it has charged itself.
func TestShareUnderNoiseInTheBuckets(t *testing.T) {
	program := pace(t)
	for _, how := range []string{"async", "sync"} {
		c := sharing(t, newMachine(t, "H200"), "7", 10, limiter.PolicyForce)
		ctx, cancel := context.WithCancel(context.Background())
		c.start(t, program, forever, how, "500")
		file, err := os.OpenFile(c.usage(), os.O_WRONLY, 0)
		require.NoError(t, err)
		written := make(chan error)
		go func() {
			noise := make([]byte, 2048)
			for ctx.Err() == nil && err == nil {
				for i := range noise {
					noise[i] = byte(rand.Uint32())
				}
				_, err = file.WriteAt(noise, 2048)
			}
			written <- err
		}()
		holdShares(t, 3*time.Second, &due{c: c, share: 10, what: how})
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
		for i, share := range []uint32{test.a, test.b} {
			c := sharing(t, state, fmt.Sprint(1+i), share, limiter.PolicyForce)
			c.start(t, program, forever, test.how, test.kernels)
			dues = append(dues, &due{c: c, share: float64(share), what: fmt.Sprint(test)})
		}
		holdShares(t, 3*time.Second, dues...)
	}
}

// The default policy does not limit a container while no other container is there. A blocked container gets
// next to nothing, limited or not. The states that the host writes take effect.
func TestPolicies(t *testing.T) {
	program := pace(t)
	var dues []*due
	for name, r := range map[string]struct {
		percent uint32
		policy  limiter.Policy
		soft    uint32
		state   limiter.CoreState
		want    float64
	}{
		"default, single":         {30, limiter.PolicyDefault, 0, limiter.CoreState{}, 99},
		"default, contended":      {30, limiter.PolicyDefault, 0, limiter.CoreState{Contended: true}, 30},
		"force, single":           {30, limiter.PolicyForce, 0, limiter.CoreState{}, 30},
		"disabled":                {30, limiter.PolicyDisable, 0, limiter.CoreState{Contended: true}, 99},
		"no limit":                {0, limiter.PolicyForce, 0, limiter.CoreState{Contended: true}, 99},
		"what shares leave":       {0, limiter.PolicyDefault, 0, limiter.CoreState{Contended: true, ElasticPercent: 20}, 20},
		"corrected":               {30, limiter.PolicyForce, 0, limiter.CoreState{Correction: 2000}, 60},
		"soft, single":            {30, limiter.PolicyForce, 60, limiter.CoreState{}, 60},
		"soft, contended":         {30, limiter.PolicyDefault, 60, limiter.CoreState{Contended: true}, 30},
		"soft, found room":        {30, limiter.PolicyDefault, 60, limiter.CoreState{Contended: true, ElasticPercent: 45}, 45},
		"blocked":                 {30, limiter.PolicyDefault, 0, limiter.CoreState{Blocked: true}, 1},
		"blocked, with a rest":    {30, limiter.PolicyDefault, 0, limiter.CoreState{Blocked: true, ElasticPercent: 20}, 20},
		"a rest without a limit":  {0, limiter.PolicyDisable, 0, limiter.CoreState{Blocked: true, ElasticPercent: 40}, 40},
		"blocked without a limit": {0, limiter.PolicyDisable, 0, limiter.CoreState{Blocked: true}, 1},
	} {
		d := &due{c: sharing(t, newMachine(t, "H200"), "7", r.percent, r.policy), share: r.want, what: name}
		if r.want > 90 {
			d.least = 65 // more than any share here
		}
		limits, err := limiter.ReadLimits(d.c.limits())
		require.NoError(t, err)
		limits.Devices[0].CoreSoftPercent = r.soft
		require.NoError(t, limiter.UpdateLimits(d.c.dir, limits))
		d.c.setCores(t, r.state)
		d.c.start(t, program, forever, "queue", "2000")
		dues = append(dues, d)
	}
	holdShares(t, 4*time.Second, dues...)
	for _, d := range dues {
		if d.least > 0 {
			assert.Zero(t, d.c.cores(t).ThrottledNanoseconds, "%s: nothing limits it, so nothing waits", d.what)
		}
	}
}

// Four processes of a container without a share take nothing of a share of 80 % beside it,
// and have all that it leaves.
func TestShareHoldsBesideContainerWithoutShare(t *testing.T) {
	program := pace(t)
	state := newMachine(t, "H200")
	t.Setenv("SIMGPU_STATE", state)
	sharer, other := sharing(t, state, "1", 80, limiter.PolicyDefault), sharing(t, state, "2", 0, limiter.PolicyDefault)
	owners := map[int]string{}
	begin := func(c *container) {
		cmd, _ := c.start(t, program, forever, "queue", "2000")
		owners[cmd.Process.Pid] = c.group
	}
	for range 4 {
		begin(other)
	}
	begin(sharer)
	stop := agentLoop(t, []feedback.Container{
		{ID: "1", Dir: sharer.dir}, {ID: "2", Dir: other.dir},
	}, owners)
	defer stop()
	// A period of the GPU in which both had what is theirs. In the first periods what was queued before still runs,
	// and a busy machine may start no launcher for a while.
	var sharers, others float64
	for end := time.Now().Add(90 * time.Second); ; {
		from, a, b := sharer.truth(t).GPUs[0].ClockNs, sharer.busy(t), other.busy(t)
		var seconds float64
		eventually(t, time.Minute, "the GPU works for five seconds", func() bool {
			seconds = float64(sharer.truth(t).GPUs[0].ClockNs-from) / 1e9
			return seconds >= 5
		})
		sharers, others = 100*(sharer.busy(t)-a)/seconds, 100*(other.busy(t)-b)/seconds
		if math.Abs(sharers-80) <= 3 && others > 10 && others <= 23 {
			return
		}
		states, err := limiter.ReadCores(other.limits())
		require.NoError(t, err)
		t.Logf("the share of 80 %% had %.1f %%, the container without one %.1f %%; the limits file has %+v", sharers, others, states[0])
		if time.Now().After(end) {
			require.FailNow(t, "the share of 80 % does not hold")
		}
	}
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
		assert.NotZero(t, c.cores(t).ChargedNanoseconds, kernels)
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
	eventually(t, waitLong, "it has a debt", func() bool { return c.cores(t).ChargedNanoseconds >= uint64(100*time.Millisecond) })
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

// A container that writes nonsense where its time is accounted harms itself at most,
// and is not held up for ever.
func TestSpoiltBucket(t *testing.T) {
	program := pace(t)
	state := newMachine(t, "H200")
	c, neighbour := sharing(t, state, "1", 90, limiter.PolicyForce), sharing(t, state, "2", 20, limiter.PolicyForce)
	_, done := c.start(t, program, 1, "async", "500", "4")
	neighbour.start(t, program, forever, "async", "500")
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	ctx, cancel := context.WithCancel(context.Background())
	written := make(chan error)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			var garbage [24]byte
			if rand.IntN(3) > 0 {
				for i := range garbage {
					garbage[i] = byte(rand.Uint32())
				}
			}
			_, err = f.WriteAt(garbage[:], 2048)
			time.Sleep(5 * time.Millisecond)
		}
		written <- err
	}()
	holdShares(t, 3*time.Second, &due{c: neighbour, share: 20, what: "the neighbour"})
	cancel()
	require.NoError(t, <-written)
	select {
	case r := <-done:
		assert.NotZero(t, r.launches)
	case <-time.After(50 * time.Second): // the largest debt that there is is 10 s of the GPU
		require.Fail(t, "it hangs")
	}
}

// A stopped process keeps its place in the queue, and takes no other place.
func TestStoppedLauncherDelaysNoProcess(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 40, limiter.PolicyForce)
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
	// 12 kernels of 20 ms, and three in another thread, of unknown cost: 1 ms.
	assert.Equal(t, uint64(243*time.Millisecond), usage.ChargedNanoseconds)
	assert.NotZero(t, usage.ThrottledNanoseconds)
}

// A stream can stand still, for example behind a kernel that waits for another process. It delays the process
// that launches more into it, for a while, and no other process.
func TestStillStreamDelaysNoProcess(t *testing.T) {
	program := filepath.Join(t.TempDir(), "still")
	require.NoError(t, compile(program, "testdata/still.c", "-D_GNU_SOURCE", "-rdynamic"))
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"another 0", "still 300"}, lines, "ms that the longest launch took")
}
