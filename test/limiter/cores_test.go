//go:build root

package limiter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

// The tests of shares measure the GPU's time, of which the simulated driver keeps
// account, against the wall's: how long calls take does not matter.

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
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "status", "-o", "json").Output()
	require.NoError(tb, err)
	var s struct {
		Groups []struct {
			ID   uint64
			GPUs []struct {
				Index  int
				BusyNs uint64 `json:"busy_ns"`
			}
		}
	}
	require.NoError(tb, json.Unmarshal(out, &s))
	for _, g := range s.Groups {
		if fmt.Sprint(g.ID) == c.group {
			for _, one := range g.GPUs {
				if one.Index == index {
					return float64(one.BusyNs) / 1e9
				}
			}
		}
	}
	return 0
}

// ran is the output of testdata/pace.c.
type ran struct {
	launches, busy, wall, longest uint64
}

// percent is the part of the GPU's time that it had.
func (r ran) percent() float64 { return 100 * float64(r.busy) / float64(r.wall) }

// holds checks a share, in percent of the GPU's time. More than it is never had. Less
// is had where the machine's own processors have no time for the launcher, which is not
// the limiter's doing: BenchmarkShare has the exact figures, of a machine at rest.
func holds(tb testing.TB, share, got float64, what ...any) {
	tb.Helper()
	assert.LessOrEqual(tb, got, share+5, what...)
	assert.Greater(tb, got, share*0.4, what...)
}

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
	type run struct {
		percent      uint32
		how, kernels string
		c            *container
		done         <-chan ran
	}
	runs := []run{
		{percent: 10, how: "async", kernels: "500"}, {percent: 30, how: "sync", kernels: "500"}, {percent: 50, how: "async", kernels: "20"},
		{percent: 70, how: "queue", kernels: "500"}, {percent: 90, how: "async", kernels: "500"},
		{percent: 30, how: "async", kernels: "5,500,5000"}, {percent: 50, how: "sync", kernels: "50000"}, {percent: 30, how: "async", kernels: "50000"},
	}
	for i := range runs { // each on a machine of its own, all at once
		r := &runs[i]
		r.c = sharing(t, newMachine(t, "H200"), "7", r.percent, limiter.PolicyForce)
		_, r.done = r.c.start(t, program, 4, r.how, r.kernels)
	}
	for _, r := range runs {
		what, got, usage := fmt.Sprintf("%d %% %s %s", r.percent, r.how, r.kernels), <-r.done, r.c.cores(t)
		holds(t, float64(r.percent), got.percent(), what)
		assert.NotZero(t, usage.ThrottledNanoseconds, what)
		assert.LessOrEqual(t, usage.Launches, got.launches, what)
		assert.InEpsilon(t, float64(got.busy), float64(usage.ChargedNanoseconds), 0.3, "%s: what is charged is what it took", what)
	}
}

// It is the container's share, however many processes and threads it has.
func TestShareIsTheContainers(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 30, limiter.PolicyForce)
	var all []<-chan ran
	for range 3 {
		_, done := c.start(t, program, 3, "sync", "300", "4")
		all = append(all, done)
	}
	var sum float64
	least, most := 100.0, 0.0
	for _, done := range all {
		p := (<-done).percent()
		sum, least, most = sum+p, min(least, p), max(most, p)
	}
	holds(t, 30, sum)
	assert.Greater(t, least, most/3, "and none of them starves")
}

// Another program of the container writes noise over the buckets of the usage file, without end. The
// process is held to the share by what it has charged itself.
func TestShareUnderNoiseInTheBuckets(t *testing.T) {
	program := pace(t)
	for _, how := range []string{"async", "sync"} {
		c := sharing(t, newMachine(t, "H200"), "7", 10, limiter.PolicyForce)
		ctx, cancel := context.WithCancel(context.Background())
		_, done := c.start(t, program, 3, how, "500")
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
		got := <-done
		cancel()
		require.NoError(t, <-written)
		require.NoError(t, file.Close())
		holds(t, 10, got.percent(), how)
	}
}

func TestSharesOfTwo(t *testing.T) {
	program := pace(t)
	for _, test := range []struct {
		a, b         uint32
		how, kernels string
	}{{30, 70, "async", "500"}, {10, 90, "async", "500"}, {50, 50, "queue", "500"}} {
		state := newMachine(t, "H200")
		_, a := sharing(t, state, "1", test.a, limiter.PolicyForce).start(t, program, 3, test.how, test.kernels)
		_, b := sharing(t, state, "2", test.b, limiter.PolicyForce).start(t, program, 3, test.how, test.kernels)
		holds(t, float64(test.a), (<-a).percent(), test)
		holds(t, float64(test.b), (<-b).percent(), test)
	}
}

// The default policy does not limit a container while no other container is there. A blocked container gets
// next to nothing, limited or not. The states that the host writes take effect.
func TestPolicies(t *testing.T) {
	program := pace(t)
	type run struct {
		percent uint32
		policy  limiter.Policy
		soft    uint32
		state   limiter.CoreState
		want    float64
		c       *container
		done    <-chan ran
	}
	runs := map[string]*run{
		"default, single":         {30, limiter.PolicyDefault, 0, limiter.CoreState{}, 99, nil, nil},
		"default, contended":      {30, limiter.PolicyDefault, 0, limiter.CoreState{Contended: true}, 30, nil, nil},
		"force, single":           {30, limiter.PolicyForce, 0, limiter.CoreState{}, 30, nil, nil},
		"disabled":                {30, limiter.PolicyDisable, 0, limiter.CoreState{Contended: true}, 99, nil, nil},
		"no limit":                {0, limiter.PolicyForce, 0, limiter.CoreState{Contended: true}, 99, nil, nil},
		"what shares leave":       {0, limiter.PolicyDefault, 0, limiter.CoreState{Contended: true, ElasticPercent: 20}, 20, nil, nil},
		"corrected":               {30, limiter.PolicyForce, 0, limiter.CoreState{Correction: 2000}, 60, nil, nil},
		"soft, single":            {30, limiter.PolicyForce, 60, limiter.CoreState{}, 60, nil, nil},
		"soft, contended":         {30, limiter.PolicyDefault, 60, limiter.CoreState{Contended: true}, 30, nil, nil},
		"soft, found room":        {30, limiter.PolicyDefault, 60, limiter.CoreState{Contended: true, ElasticPercent: 45}, 45, nil, nil},
		"blocked":                 {30, limiter.PolicyDefault, 0, limiter.CoreState{Blocked: true}, 1, nil, nil},
		"blocked, with a rest":    {30, limiter.PolicyDefault, 0, limiter.CoreState{Blocked: true, ElasticPercent: 20}, 20, nil, nil},
		"a rest without a limit":  {0, limiter.PolicyDisable, 0, limiter.CoreState{Blocked: true, ElasticPercent: 40}, 40, nil, nil},
		"blocked without a limit": {0, limiter.PolicyDisable, 0, limiter.CoreState{Blocked: true}, 1, nil, nil},
	}
	for _, r := range runs {
		r.c = sharing(t, newMachine(t, "H200"), "7", r.percent, r.policy)
		limits, err := limiter.ReadLimits(r.c.limits())
		require.NoError(t, err)
		limits.Devices[0].CoreSoftPercent = r.soft
		require.NoError(t, limiter.UpdateLimits(r.c.dir, limits))
		r.c.setCores(t, r.state)
		_, r.done = r.c.start(t, program, 4, "queue", "2000")
	}
	for name, r := range runs {
		got := (<-r.done).percent()
		if r.want > 90 {
			assert.Greater(t, got, 65.0, name) // more than any share here
			assert.Zero(t, r.c.cores(t).ThrottledNanoseconds, name)
		} else {
			holds(t, r.want, got, name)
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
		cmd, _ := c.start(t, program, 1000, "queue", "2000")
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

// A process that has used less than an idle container may use at once is not throttled. On a busy machine the kernels of a
// try can take longer than they should, or start too late: one try of twenty has to be without a wait.
func TestNoStallAtTheStart(t *testing.T) {
	program := pace(t)
	for _, kernels := range []string{"5", "500", "5,10,20,50,100,200,500"} {
		tries := 0
		for ; tries < 20; tries++ {
			c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
			_, done := c.start(t, program, 0.015, "sync", kernels)
			if r := <-done; r.launches > 0 && c.cores(t).ThrottledNanoseconds == 0 {
				break
			}
		}
		assert.Less(t, tries, 20, "kernels of %s µs: each try was throttled", kernels)
	}
}

// Running programs follow new limits: one that sleeps off a debt wakes up, and one
// that was free is held back.
func TestShareChangesWhileItRuns(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 1, limiter.PolicyForce)
	c.start(t, program, 60, "sync", "50000") // each costs 5 s of its share
	eventually(t, waitLong, "it has a debt", func() bool { return c.cores(t).ChargedNanoseconds >= uint64(100*time.Millisecond) })
	waited := c.cores(t).ThrottledNanoseconds
	eventually(t, time.Second, "a wait is counted while it lasts", func() bool { return c.cores(t).ThrottledNanoseconds > waited })
	c.share(t, 0, limiter.PolicyForce)
	had := c.busy(t)
	eventually(t, 4*time.Second, "it does not sleep on", func() bool { return c.busy(t) > had+0.5 })

	c.share(t, 20, limiter.PolicyForce)
	time.Sleep(500 * time.Millisecond)
	had, from := c.busy(t), time.Now()
	time.Sleep(3 * time.Second)
	holds(t, 20, 100*(c.busy(t)-had)/time.Since(from).Seconds())
}

// Processes that are killed at any moment neither stop the others nor give them more.
func TestShareUnderKills(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 40, limiter.PolicyForce)
	running := make([]*exec.Cmd, 6)
	launch := func(i int) { running[i], _ = c.start(t, program, 60, []string{"sync", "async", "queue"}[i%3], "500") }
	for i := range running {
		launch(i)
	}
	time.Sleep(500 * time.Millisecond)
	had, from, kills := c.busy(t), time.Now(), 0
	for time.Since(from) < 5*time.Second {
		i := rand.IntN(len(running))
		require.NoError(t, running[i].Process.Kill())
		launch(i)
		kills++
		time.Sleep(time.Duration(10+rand.IntN(40)) * time.Millisecond)
	}
	got := 100 * (c.busy(t) - had) / time.Since(from).Seconds()
	t.Logf("%d kills, %.1f %%", kills, got)
	assert.Less(t, got, 48.0)
	for _, cmd := range running {
		require.NoError(t, cmd.Process.Kill())
	}
	time.Sleep(100 * time.Millisecond)
	_, done := c.start(t, program, 2, "sync", "500")
	holds(t, 40, (<-done).percent(), "and a later process has the whole share")
}

// A container that writes nonsense where its time is accounted harms itself at most,
// and is not held up for ever.
func TestSpoiltBucket(t *testing.T) {
	program := pace(t)
	state := newMachine(t, "H200")
	c, neighbour := sharing(t, state, "1", 90, limiter.PolicyForce), sharing(t, state, "2", 20, limiter.PolicyForce)
	_, done := c.start(t, program, 1, "async", "500", "4")
	_, other := neighbour.start(t, program, 3, "async", "500")
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	for range 200 {
		var garbage [24]byte
		for i := range garbage {
			garbage[i] = byte(rand.Uint32())
		}
		if rand.IntN(3) == 0 {
			garbage = [24]byte{}
		}
		_, err := f.WriteAt(garbage[:], 2048)
		require.NoError(t, err)
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case r := <-done:
		assert.NotZero(t, r.launches)
	case <-time.After(50 * time.Second): // 10 s of the GPU, the largest debt that there is
		require.Fail(t, "it hangs")
	}
	holds(t, 20, (<-other).percent())
}

// A stopped process keeps its place in the queue, and takes no other place.
func TestStoppedLauncherDelaysNoProcess(t *testing.T) {
	program := pace(t)
	c := sharing(t, newMachine(t, "H200"), "7", 40, limiter.PolicyForce)
	for range 3 {
		cmd, _ := c.start(t, program, 60, "sync", "500", "2")
		time.Sleep(150 * time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	}
	_, done := c.start(t, program, 2, "sync", "500")
	holds(t, 40, (<-done).percent())
}

// What is launched into a capture does not run: it costs nothing, waits for nothing,
// and nothing of the library's own is called that would break the capture. Launches
// elsewhere wait as ever.
func TestCaptureIsLeftAlone(t *testing.T) {
	program := filepath.Join(t.TempDir(), "captures")
	require.NoError(t, compile(program, "testdata/captures.c", "-pthread"))
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Equal(t, []string{"begin 0", "captured 50000", "nested 401", "end of another 401", "end 0", "broken 0", "launched 50008"}, lines)
	assert.Empty(t, stderr)
	usage := c.cores(t)
	// 12 kernels of 20 ms, and three of unknown cost in another thread.
	assert.InDelta(t, 240, float64(usage.ChargedNanoseconds)/1e6, 40)
	assert.NotZero(t, usage.ThrottledNanoseconds)
}

// A stream can stand still, for example behind a kernel that waits for another process. It delays the process
// that launches more into it, for a while, and no other process.
func TestStillStreamDelaysNoProcess(t *testing.T) {
	program := filepath.Join(t.TempDir(), "still")
	require.NoError(t, compile(program, "testdata/still.c"))
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Empty(t, stderr)
	require.Len(t, lines, 2)
	var other, still int
	_, err := fmt.Sscanf(lines[0]+" "+lines[1], "another %d still %d", &other, &still)
	require.NoError(t, err)
	assert.Less(t, other, 100, "ms")
	assert.InDelta(t, 300, still, 150, "ms")
}
