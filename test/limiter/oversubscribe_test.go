//go:build root

package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// oversubscribed is a container with a limit of 1 GiB. Half of it may be on the GPU.
func oversubscribed(t *testing.T) *container { return oversubscribedOn(t, "H200") }

func oversubscribedOn(t *testing.T, device string) *container {
	return newContainer(t, newMachine(t, device), gpu{gpuIDs[0], giB}).withPart(t, 1<<29)
}

// withPart is the container on a node that grants more memory than its GPUs have: so much of its limit may be on the GPU.
func (c *container) withPart(tb testing.TB, bytes uint64) *container {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	limits.Devices[0].PhysicalBytes = bytes
	require.NoError(tb, limiter.UpdateLimits(c.dir, limits))
	return c
}

// Beyond its part of the GPU a container's memory is managed, up to its limit and no further. The container
// sees all of it, and freed memory returns to the part that it was taken from.
func TestOversubscription(t *testing.T) {
	const half = "536870912"
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"the first half is the GPU's, the second may be the host's, and there is no third", "init ctx 0 alloc " + half + " where 0 alloc " + half + " where 1 alloc 1 info",
			[]string{"init 0", "ctx 0", "alloc 0", "where 0 0", "alloc 0", "where 0 1", "alloc 2", "info 0 free 0 total 1073741824"}},
		{"one byte more than the GPU's part", "init ctx 0 alloc 536870913 where 0 alloc 536870911 where 1 alloc 1",
			[]string{"init 0", "ctx 0", "alloc 0", "where 0 1", "alloc 0", "where 0 0", "alloc 2"}},
		{"what is freed of the GPU is the GPU's again", "init ctx 0 alloc " + half + " alloc " + half + " free 0 alloc " + half + " where 2 free 1 free 2 info",
			[]string{"init 0", "ctx 0", "alloc 0", "alloc 0", "free 0", "alloc 0", "where 0 0", "free 0", "free 0", "info 0 free 1073741824 total 1073741824"}},
		{"what is freed of the host's is the limit's", "init ctx 0 alloc " + half + " alloc " + half + " free 1 alloc " + half + " where 2 alloc 1",
			[]string{"init 0", "ctx 0", "alloc 0", "alloc 0", "free 0", "alloc 0", "where 0 1", "alloc 2"}},
		{"managed memory takes none of the GPU's part", "init ctx 0 managed " + half + " alloc " + half + " where 1 managed 1",
			[]string{"init 0", "ctx 0", "managed 0", "alloc 0", "where 0 0", "managed 2"}},
		{"more than the limit at once", "init ctx 0 alloc 1073741825 alloc 1073741824 where 0",
			[]string{"init 0", "ctx 0", "alloc 2", "alloc 0", "where 0 1"}},
		{"virtual memory is the GPU's", "init ctx 0 vcreate 0 512 vcreate 0 2",
			[]string{"init 0", "ctx 0", "vcreate 0", "vcreate 2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := oversubscribed(t)
			lines, _ := c.probe(t, test.script)
			assert.Equal(t, test.want, lines)
			assert.Zero(t, c.used(t), "all is given back")
			usage, err := limiter.ReadUsage(c.usage())
			require.NoError(t, err)
			assert.Zero(t, usage.Devices[0].SpilledBytes)
		})
	}
	t.Run("pools are the GPU's", func(t *testing.T) {
		t.Parallel()
		lines, _ := oversubscribed(t).run(t, filepath.Join(bin, "pools"), "init", "ctx", "0", "async", half, "async", "1", "alloc", half)
		assert.Equal(t, []string{"async 0", "async 2", "alloc 0"}, lines[len(lines)-3:])
	})
	t.Run("a full GPU", func(t *testing.T) {
		t.Parallel()
		c := oversubscribed(t)
		fail(t, c, "cuMemAlloc_v2")
		lines, _ := c.probe(t, "init ctx 0 alloc 4096 where 0 alloc 4096 where 1")
		assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "where 0 1", "alloc 0", "where 0 0"}, lines, "others have its part: the host has room")
	})
}

// Programs that ask for memory that can't be in the host's get one line about it, and are refused beyond the part of the GPU.
func TestOversubscriptionReportsWhatItLeavesOut(t *testing.T) {
	const warning = "gpuslice: memory pools, virtual memory (cuMemCreate) and graphs can't be in the host's memory: at most 512 of this container's 1024 MiB are theirs\n"
	for _, test := range []struct{ program, script, refused, stderr string }{
		{"probe", "init ctx 0 vcreate 0 2 vcreate 0 512", "vcreate 2", warning},
		{"pools", "init ctx 0 async 1 async 536870912", "async 2", warning},
		{"pools", "init ctx 0 graph node 536870913 inst 2 launch 0", "launch 2", warning},
		{"probe", "init ctx 0 alloc 536870912 alloc 536870912 managed 1", "managed 2", ""},
	} {
		c := oversubscribed(t)
		lines, stderr := c.run(t, filepath.Join(bin, test.program), strings.Fields(test.script)...)
		assert.Contains(t, lines, test.refused, test.script)
		assert.Equal(t, test.stderr, stderr, test.script)
	}
}

// Of processes that are killed while they spill nothing stays: neither of the limit nor
// of the GPU's part is there less or more than before.
func TestOversubscriptionUnderKills(t *testing.T) {
	t.Run("to the byte", func(t *testing.T) { oversubscriptionUnderKills(t, unpaged) })
	t.Run("in pages", func(t *testing.T) { oversubscriptionUnderKills(t, "") })
}

func oversubscriptionUnderKills(t *testing.T, keys string) {
	c := oversubscribedOn(t, "H200:context_mib=520"+keys).as(t, keys)
	running := make([]*exec.Cmd, 6)
	start := func(i int) {
		running[i] = c.command(filepath.Join(bin, "churn"), "60", fmt.Sprint(rand.IntN(1e6)), fmt.Sprint(300*miB), "4")
		require.NoError(t, running[i].Start())
		t.Cleanup(func() { running[i].Process.Kill(); running[i].Wait() })
	}
	for i := range running {
		start(i)
	}
	spilled := uint64(0)
	for begin := time.Now(); time.Since(begin) < 4*time.Second || spilled == 0 && time.Since(begin) < time.Minute; time.Sleep(20 * time.Millisecond) {
		usage, err := limiter.ReadUsage(c.usage())
		require.NoError(t, err)
		spilled = max(spilled, usage.Devices[0].SpilledBytes)
		i := rand.IntN(len(running))
		require.NoError(t, running[i].Process.Kill())
		running[i].Wait()
		start(i)
	}
	for _, cmd := range running {
		require.NoError(t, cmd.Process.Kill())
		cmd.Wait()
	}
	assert.NotZero(t, spilled, "nothing ever was: the test tests nothing")
	peak, now := c.peak(t)
	requirePeak(t, peak, giB)
	assert.Zero(t, now)
	lines, _ := c.probe(t, "init ctx 0 alloc 536870912 where 0 alloc 536870912 where 1 alloc 1 free 0 free 1 info")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "where 0 0", "alloc 0", "where 0 1", "alloc 2", "free 0", "free 0",
		"info 0 free 1073741824 total 1073741824"}, lines)
}
