//go:build root

package limiter_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// What is known of the work under way, and which events are recorded where, on a played driver that refuses what a real one does.
func TestFlight(t *testing.T) {
	source := filepath.Join(root, "limiter", "src")
	program := filepath.Join(t.TempDir(), "flights")
	out, err := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-fsanitize=undefined", "-iquote", source,
		"-iquote", "testdata/turns", "-include", "testdata/turns/played.h", "-pthread", "-o", program, "testdata/turns/flights.c",
		filepath.Join(source, "flightmarks.c"), filepath.Join(source, "flightstreams.c"),
		filepath.Join(source, "flightends.c"), filepath.Join(source, "recorded.c"), filepath.Join(source, "duration.c")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, want := range map[string][]string{
		"passes": {
			"permitted: 3000", "passed: 253300 of 253300", "one more: 254300", "look: events 1, without 0", "marked: 254300, without: 0",
		},
		"counts": {"none more: events 0, without 0", "fewer: events 0, without 0", "fewer, look: events 1, without 0", "launches 1"},
		"own": {
			"another thread's: events 0, without 1", "this one's has ended: events 0, without 1", "both: events 1, without 1",
			"this one's has ended again: events 0, without 1", "all have ended: events 0, without 0",
			"another thread's: events 0, without 1", "the legacy stream has ended: events 0, without 0",
			"another thread's: events 0, without 1", "0.2 s later: events 0, without 1", "0.4 s later: events 0, without 0",
		},
		"contexts": {"two legacy streams: events 2, without 0", "one has ended: events 1, without 0", "both: events 0, without 0"},
		"handles":  {"a stream of another context: events 1, without 0", "refused 0"},
		"events":   {"all events are of a context: events 0, without 0", "another one: events 1, without 0"},
		"asked": {
			"two streams: events 8, without 0", "queries 2, pending 8", "one has ended: events 4, without 0", "queries 5, pending 4",
		},
		"answers": {
			"its event: 1, then: events 0, without 0", "again: 0, then: events 0, without 0",
			"the second event: 1, then: events 0, without 1", "the launch behind it: events 1, without 0",
			"one of two streams: 1, then: events 1, without 0", "the other was waited for: events 0, without 0",
		},
		"forged": {
			"recorded again elsewhere: 0, then: events 1, without 0", "destroyed: 0, then: events 2, without 0", "asked before: 0",
			"recorded by two threads at once: 0, then: events 4, without 0",
			"recorded in a stream without work: 0, then: events 4, without 1", "events 1, then 0",
			"with the limiter's: events 5, without 0", "all have ended: events 0, without 0",
		},
		"given": {
			"its stream was destroyed: 0, then: events 1, without 0", "it has ended: events 0, without 0",
			"its context may be ending: 0, then: events 0, without 1", "it has ended: events 0, without 0",
		},
		"broken": {
			"no event can be recorded: events 0, without 1", "launches 2, marked 0", "again: events 0, without 1",
			"it can: events 1, without 0", "it has ended: events 0, without 0",
		},
		"threads": {
			"another thread's own stream: events 1, without 0", "its event: 1, then: events 0, without 0", "0.4 s later: events 0, without 0",
		},
		"ends": {
			"one: events 1, without 0", "the other context may be ending: events 1, without 1", "it has not ended: events 2, without 0",
			"it may be ending again: events 1, without 1", "it has ended: events 1, without 0", "the first one may be ending: events 0, without 1",
			"and has: events 0, without 0", "a stream that was destroyed: events 0, without 0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(program, name).CombinedOutput()
			assert.NoError(t, err)
			assert.Equal(t, want, strings.Split(strings.TrimSpace(string(out)), "\n"))
		})
	}
}

func streams(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "streams")
	require.NoError(t, compile(program, "testdata/streams.c", "-D_GNU_SOURCE", "-rdynamic"))
	return program
}

// A container without a share takes part only while a neighbour has one. A stream that it destroys meanwhile is forgotten: the
// driver may have given its handle to something else when the next neighbour comes.
func TestStreamThatEndedWithoutShares(t *testing.T) {
	state := newMachine(t, "H200")
	c, neighbour := sharing(t, state, "1", 0, limiter.PolicyDefault), sharing(t, state, "2", 50, limiter.PolicyDefault)
	takeTurns(t, c, neighbour)
	c.sim = fakeDriver(t)
	cmd := c.command(streams(t), "ends")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for _, percent := range []uint32{0, 50} {
		require.True(t, lines.Scan())
		require.Equal(t, "?", lines.Text())
		neighbour.share(t, percent, limiter.PolicyDefault)
		fmt.Fprintln(in)
	}
	require.True(t, lines.Scan())
	assert.Equal(t, "lost 0", lines.Text())
	require.NoError(t, cmd.Wait())
}

// Events of the program show ends until a record of one may be made that the limiter does not see.
func TestRecordsThatAreNotSeen(t *testing.T) {
	program, driver := streams(t), fakeDriver(t)
	for what, want := range map[string]string{
		"other": "few 1, then few 1", "launch": "few 1, then few 0", "completion": "few 1, then few 0", "variant": "few 1, then few 0",
		"context": "few 1, then few 0", "process": "few 1, then few 0",
	} {
		t.Run(what, func(t *testing.T) {
			c := sharing(t, newMachine(t, "H200"), "1", 50, limiter.PolicyDefault)
			takeTurns(t, c)
			c.sim = driver
			lines, stderr := c.run(t, program, "records", what)
			t.Log(stderr)
			assert.Equal(t, []string{want}, lines)
		})
	}
}

// Launches of which only the program's events showed the end do not wait because another thread's capture is open.
func TestLaunchesWithEventsBesideOpenCapture(t *testing.T) {
	c := sharing(t, newMachine(t, "H200"), "1", 50, limiter.PolicyDefault)
	takeTurns(t, c)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, streams(t), "beside")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"waited 0 ms"}, lines)
}

// A capture ends with its stream, and work is measured again.
func TestStreamThatEndedInItsCapture(t *testing.T) {
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, streams(t), "captured")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"begin 0", "recorded 1"}, lines)
}

// A capture that stays open may be of a thread that waits for another one's launches: they do not wait for ever.
func TestLaunchesBesideOpenCapture(t *testing.T) {
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, streams(t), "open")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"launches 4"}, lines)
}

// A launch on several GPUs is work on each of them.
func TestLaunchOnSeveralGPUsCounts(t *testing.T) {
	c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, streams(t), "several")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"launches 10"}, lines)
	usage := c.cores(t)
	assert.Equal(t, uint64(10), usage.Launches)
	assert.InDelta(t, float64(200*time.Millisecond), float64(usage.BusyNanoseconds), float64(25*time.Millisecond))
}

// What waits for the work in front of it ends that work: pauses after it are not charged. Its arguments arrive as they are. Calls
// for which the driver does not wait are not made to.
func TestCopiesEndWork(t *testing.T) {
	type call struct {
		name      string
		arguments string
		waits     bool // the limiter waits first
		within    bool // within the GPU's own memory it does not
	}
	var calls []call
	add := func(c call, names ...string) {
		for _, name := range names {
			c.name = name
			calls = append(calls, c)
		}
	}
	versions := func(c call, names ...string) {
		for _, name := range names {
			add(c, name, name+"_v2", name+"_v2_ptds")
		}
	}
	add(call{arguments: "1 200 300000", waits: true}, "cuMemcpy", "cuMemcpy_ptds")
	versions(call{arguments: "1 200 300000", waits: true}, "cuMemcpyDtoH", "cuMemcpyHtoD")
	versions(call{arguments: "1 200 300000 400000", waits: true}, "cuMemcpyAtoH", "cuMemcpyHtoA")
	versions(call{arguments: "1", waits: true, within: true}, "cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy3D")
	add(call{arguments: "1", waits: true, within: true}, "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds")
	versions(call{arguments: "1 200 300000", waits: true, within: true}, "cuMemsetD8", "cuMemsetD16", "cuMemsetD32")
	versions(call{arguments: "1 200 33 400000 500000", waits: true, within: true}, "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32")
	add(call{arguments: "1", within: true}, "cuMemFree", "cuMemFree_v2", "cuArrayDestroy", "cuMipmappedArrayDestroy")

	run := func(mode string, of func(call) bool, waits func(call) bool) *container {
		c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
		c.sim = fakeDriver(t)
		arguments, want := []string{mode}, []string{}
		for _, call := range calls {
			if !of(call) {
				continue
			}
			arguments = append(arguments, call.name)
			times := 0
			if waits(call) {
				times = 2
			}
			want = append(want, fmt.Sprintf("%s %d: %s ", call.name, times, call.arguments))
		}
		lines, stderr := c.run(t, streams(t), arguments...)
		assert.Empty(t, stderr)
		require.Len(t, lines, len(want))
		for i := range want {
			assert.True(t, strings.HasPrefix(lines[i]+" ", want[i]), "%s: want %s", lines[i], want[i])
		}
		return c
	}
	c := run("copies", func(call) bool { return true }, func(c call) bool { return c.waits })
	// The last kernel, of 20 ms, has no look after it.
	assert.InDelta(t, float64(time.Duration(len(calls)*25-20)*time.Millisecond), float64(c.cores(t).BusyNanoseconds), float64(25*time.Millisecond))
	run("within", func(c call) bool { return c.within }, func(call) bool { return false })
}

// A driver that waits for the GPU before it frees ends work: pauses after it are not charged.
func TestFreesEndWork(t *testing.T) {
	sim := fakeDriver(t)
	for _, name := range []string{"cuMemFree", "cuMemFree_v2", "cuArrayDestroy", "cuMipmappedArrayDestroy"} {
		c := sharing(t, newMachine(t, "H200"), "7", 50, limiter.PolicyForce)
		c.sim = sim
		names := slices.Repeat([]string{name}, 20)
		_, stderr := c.run(t, streams(t), append([]string{"copies"}, names...)...)
		assert.Empty(t, stderr)
		assert.InDelta(t, float64(time.Duration(len(names)*25-20)*time.Millisecond), float64(c.cores(t).BusyNanoseconds), float64(25*time.Millisecond), name)
	}
}
