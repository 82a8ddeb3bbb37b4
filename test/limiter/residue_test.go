//go:build root

package limiter_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// Memory that the host reports beyond the charges reduces what may still be charged, is shown as used, and is
// available again when the host reports less.
func TestResidueCounts(t *testing.T) {
	c := oneGPU(t, 1<<30)
	residue := func(bytes uint64) {
		require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{bytes}))
	}
	residue(1 << 20)
	lines, _ := c.probe(t, "init ctx 0 info alloc 1072693249 alloc 1072693248 alloc 1 nvml")
	require.Equal(t, []string{"init 0", "ctx 0", "info 0 free 1072693248 total 1073741824", "alloc 2", "alloc 0", "alloc 2"}, lines[:6])

	residue(2 << 30)
	lines, _ = c.probe(t, "init ctx 0 info alloc 1")
	require.Equal(t, []string{"init 0", "ctx 0", "info 0 free 0 total 1073741824", "alloc 2"}, lines, "more than all: nothing can be charged")

	residue(0)
	lines, _ = c.probe(t, "init ctx 0 alloc 1073741824 alloc 1")
	require.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
}

// unmeasured is the container on a node without an agent.
func (c *container) unmeasured(tb testing.TB) *container {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	for i := range limits.Devices {
		limits.Devices[i].Unmeasured = true
	}
	require.NoError(tb, limiter.WriteLimits(c.limits(), limits))
	return c
}

// Without an agent, a process is charged what NVML counts for it beyond its charges: here a context that is larger than
// the host knows. The driver names processes by PIDs of this namespace or of the host's, and lists other containers' too.
func TestResidueWithoutAgent(t *testing.T) {
	const limit, known, real = giB, 100 * miB, 120 * miB
	for _, test := range []struct {
		name, pids string
		namespace  bool
	}{{"in the host's namespace", "own", false}, {"in a namespace of its own", "own", true}, {"by PIDs of the host", "host", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			state := newMachine(t, "H200:context_mib=120")
			out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", state, "set", "driver", "pids="+test.pids).CombinedOutput()
			require.NoError(t, err, "%s", out)
			other := newContainer(t, state, gpu{gpuIDs[0], 8 * giB})
			other.group = "8"
			speak(t, other, "init ctx 0 alloc 4294967296 line").says(t, "init 0", "ctx 0", "alloc 0")
			c := newContainerKnowing(t, state, known, gpu{gpuIDs[0], limit}).inPages(t).unmeasured(t)
			var in []string
			if test.namespace {
				in = []string{"unshare", "-pf", "--kill-child", "--mount-proc"}
			}
			uses := func(bytes uint64, what string) {
				eventually(t, waitLong, what, func() bool {
					c.truth(t) // the simulator knows the host's PIDs from it
					return c.used(t) == bytes
				})
			}

			s := speak(t, c, "init ctx 0 alloc 209715200 line alloc 738197505 alloc 738197504 info release 0 line", in...)
			uses(real+200*miB, "the rest of the context is charged")
			s.goOn(t)
			s.says(t, "init 0", "ctx 0", "alloc 0", "alloc 2", "alloc 0", "info 0 free 0 total 1073741824", "release 0")
			uses(0, "with the context its residue ends")
			s.goOn(t)
			require.NoError(t, s.cmd.Wait())
			peak, _ := c.peakTotal(t)
			require.Equal(t, uint64(limit), peak)
		})
	}
}

// measuredFirst is the container on a node with an agent.
func (c *container) measuredFirst(tb testing.TB) *container {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	for i := range limits.Devices {
		limits.Devices[i].MeasureFirst = true
	}
	require.NoError(tb, limiter.WriteLimits(c.limits(), limits))
	return c
}

// patient is a library of which an allocation waits for a minute, and not for 0.3 s, until its context is measured.
func patient(tb testing.TB) string {
	tb.Helper()
	out := tb.TempDir()
	objects := filepath.Join(out, "obj", "limiter")
	require.NoError(tb, os.CopyFS(objects, os.DirFS(filepath.Join(built, "obj", "limiter"))))
	require.NoError(tb, os.Remove(filepath.Join(objects, "residue.o")))
	text, err := exec.Command("make", "-C", filepath.Join(root, "limiter", "src"), "OUT="+out, "CFLAGS=-O2 -g -DRESIDUE_FIRST_US=60000000").CombinedOutput()
	require.NoError(tb, err, "%s", text)
	return filepath.Join(out, "lib", "libvgpu.so")
}

// The first allocation of a context is already within what the context leaves, whatever the host expects of it, and whatever
// kind of memory it is.
func TestResidueBeforeTheFirstAllocation(t *testing.T) {
	library := patient(t)
	for _, node := range []struct {
		name string
		with func(*container, testing.TB) *container
	}{{"without an agent", (*container).unmeasured}, {"with an agent", (*container).measuredFirst}} {
		for _, test := range []struct {
			name, program, script string
			want                  []string
		}{
			{"linear", "probe", "init ctx 0 alloc 947912705 alloc 947912704", []string{"init 0", "ctx 0", "alloc 2", "alloc 0"}},
			{"in a second context", "probe", "init ctx 0 alloc 4194304 newctx 0 alloc 817889281 alloc 817889280",
				[]string{"init 0", "ctx 0", "alloc 0", "newctx 0", "alloc 2", "alloc 0"}},
			{"managed", "probe", "init ctx 0 managed 947912705 managed 947912704", []string{"init 0", "ctx 0", "managed 2", "managed 0"}},
			{"virtual", "probe", "init ctx 0 vcreate 0 906 vcreate 0 904", []string{"init 0", "ctx 0", "vcreate 2", "vcreate 0"}},
			{"of a pool", "pools", "init ctx 0 async 939524097 async 939524096", []string{"init 0", "ctx 0", "async 2", "async 0"}},
			{"of a graph", "pools", "init ctx 0 graph node 947912705 inst 2 launch 0 graph node 947912704 inst 2 launch 1",
				[]string{"init 0", "ctx 0", "graph 0", "node 0", "inst 0", "launch 2", "graph 0", "node 0", "inst 0", "launch 0"}},
		} {
			for _, known := range []uint64{0, 100 * miB, 120 * miB} {
				t.Run(fmt.Sprintf("%s/%s/%d MiB are known", node.name, test.name, known/miB), func(t *testing.T) {
					t.Parallel()
					c := node.with(newContainerKnowing(t, newMachine(t, "H200:context_mib=120"), known, gpu{gpuIDs[0], giB}).inPages(t), t)
					c.library = library
					lines, _ := c.run(t, filepath.Join(bin, test.program), strings.Fields(test.script)...)
					require.Equal(t, test.want, lines)
					peak, _ := c.peakTotal(t)
					require.LessOrEqual(t, peak, uint64(giB))
				})
			}
		}
	}
}

// Where NVML does not show the process, or its memory can't be moved, no allocation waits for more than two attempts, and
// later contexts cause fewer and fewer.
func TestResidueThatCanNotBeMeasured(t *testing.T) {
	const many = 1 << 20
	for _, node := range []struct {
		name string
		with func(*container, testing.TB) *container
	}{{"without an agent", (*container).unmeasured}, {"with an agent", (*container).measuredFirst}} {
		for _, symbol := range []string{"nvmlDeviceGetComputeRunningProcesses_v3", "cuMemCreate"} {
			t.Run(node.name+"/"+symbol, func(t *testing.T) {
				c := node.with(newContainer(t, newMachine(t, "H200"), gpu{gpuIDs[0], 64 * giB}), t)
				c.simctl(t, "fail", symbol, strconv.Itoa(many), "NOT_SUPPORTED")
				script := "init ctx 0 alloc 4194304"
				for range 16 {
					script += " newctx 0 alloc 4194304 newctx"
				}
				lines, _ := c.probe(t, script)
				require.NotContains(t, lines, "alloc 2")
				out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "status", "-o", "json").Output()
				require.NoError(t, err)
				var status struct{ Fails []struct{ Left int } }
				require.NoError(t, json.Unmarshal(out, &status))
				require.Len(t, status.Fails, 1)
				t.Logf("%d attempts", many-status.Fails[0].Left)
				require.GreaterOrEqual(t, many-status.Fails[0].Left, 1)
				require.LessOrEqual(t, many-status.Fails[0].Left, 8, "for 17 contexts")
			})
		}
	}
}

// With an agent a process measures a context once, also if it allocates nothing, and then follows only what it has charged.
func TestResidueBesideAnAgent(t *testing.T) {
	state := newMachine(t, "H200:context_mib=120")
	c := newContainerKnowing(t, state, 100*miB, gpu{gpuIDs[0], giB}).inPages(t).unmeasured(t)
	c.measuredFirst(t)
	s := speak(t, c, "init ctx 0 line newctx 0 line newctx line release 0 line")
	charged := func(bytes uint64, what string) {
		t.Helper()
		eventually(t, waitLong, what, func() bool { return c.used(t) == bytes })
	}
	charged(120*miB, "all of it is charged")
	require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{0}))
	charged(120*miB, "and still is when the agent measures")
	s.goOn(t)
	charged(240*miB, "a second context")
	s.goOn(t)
	charged(120*miB, "which has ended")
	s.goOn(t)
	charged(0, "the first one has ended, too")
	s.goOn(t)
	require.NoError(t, s.cmd.Wait())
}

// What the agent has measured of a process is not charged again when the process measures itself for a second context,
// also if the agent writes no more.
func TestResidueOfAnAgentIsNotChargedAgain(t *testing.T) {
	for _, known := range []uint64{100 * miB, 120 * miB} {
		t.Run(fmt.Sprintf("%d MiB are known", known/miB), func(t *testing.T) {
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=120"), known, gpu{gpuIDs[0], giB}).inPages(t)
			c.measuredFirst(t)
			s := speak(t, c, "init ctx 0 alloc 2097152 line newctx 0 alloc 1 alloc 549453825 alloc 549453824 line")
			s.says(t, "init 0", "ctx 0", "alloc 0")
			require.EqualValues(t, 122*miB, c.used(t))
			require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{256 * miB}))
			c.simctl(t, "grow", strconv.Itoa(s.cmd.Process.Pid), "256")
			s.goOn(t)
			s.says(t, "newctx 0", "alloc 0", "alloc 2", "alloc 0")
			require.EqualValues(t, 768*miB, c.used(t))
			s.goOn(t)
			require.NoError(t, s.cmd.Wait())
		})
	}
}

// When an agent measures, the process's own correction ends.
func TestResidueOfAnAgentReplacesTheProcesss(t *testing.T) {
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=120"), 100*miB, gpu{gpuIDs[0], giB}).unmeasured(t)
	speak(t, c, "init ctx 0 line")
	eventually(t, waitLong, "it is charged", func() bool { return c.used(t) == 120*miB })
	require.NoError(t, limiter.UpdateResidue(c.dir, []uint64{20 * miB}))
	eventually(t, waitLong, "the agent's counts", func() bool { return c.used(t) == 100*miB })
}

// What a library of the process takes without a call is charged too; what a neighbour takes and gives back all the time is
// not.
func TestResidueGrowsBesideANeighbour(t *testing.T) {
	const base = 120*miB + 200*miB
	state := newMachine(t, "H200:context_mib=120")
	other := newContainer(t, state, gpu{gpuIDs[0], 8 * giB})
	other.group = "8"
	neighbour := other.command(filepath.Join(bin, "churn"), "600", "1", "33554432", "2")
	require.NoError(t, neighbour.Start())
	t.Cleanup(func() { neighbour.Process.Kill(); neighbour.Wait() })
	c := newContainerKnowing(t, state, 120*miB, gpu{gpuIDs[0], giB}).inPages(t).unmeasured(t)
	s := speak(t, c, "init ctx 0 alloc 209715200 line threads line alloc 536870913 alloc 536870912 info")
	s.says(t, "init 0", "ctx 0", "alloc 0")
	for grown := range 3 {
		out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", state, "grow", strconv.Itoa(s.cmd.Process.Pid), "64").CombinedOutput()
		require.NoError(t, err, "%s", out)
		want := uint64(base + (grown+1)*64*miB)
		eventually(t, waitLong, "the growth is charged", func() bool {
			require.LessOrEqual(t, c.used(t), want)
			return c.used(t) == want
		})
	}
	s.goOn(t)
	s.says(t, "threads 3") // the program's, the owner's, and the one that looks
	s.goOn(t)
	s.says(t, "alloc 2", "alloc 0", "info 0 free 0 total 1073741824")
	require.NoError(t, s.cmd.Wait())
}
