//go:build root

package limiter_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pools runs testdata/pools.c: "word result" for each word of the script.
func (c *container) pools(tb testing.TB, script string) (lines []string, stderr string) {
	tb.Helper()
	return c.run(tb, filepath.Join(bin, "pools"), strings.Fields(script)...)
}

// The limit holds for what pools reserve, to the byte, whichever pool it is; and all
// of it can be had.
func TestPoolsInsideTheLimit(t *testing.T) {
	// The scripts' numbers are bytes; a pool grows by chunks of 32 MiB, 33554432.
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"a chunk for a byte", "async 1 info", []string{"async 0", "info 1040187392 0"}},
		{"all of it in one, then one chunk more", "async 1073741824 async 1 info", []string{"async 0", "async 2", "info 0 0"}},
		{"one byte more than the limit", "async 1073741825 info", []string{"async 2", "info 1073741824 0"}},
		{"a size that overflows", "async 0xffffffffffffffff async 0x7fffffffffffffff info",
			[]string{"async 2", "async 2", "info 1073741824 0"}},
		{"nothing", "async 0 info", []string{"async 1", "info 1073741824 0"}},
		{"the rest of the limit is linear memory's", "async 1 alloc 1040187393 alloc 1040187392 async 33554432 info",
			[]string{"async 0", "alloc 2", "alloc 0", "async 2", "info 0 0"}},
		{"what is freed can be had again in its stream", "async 1073741824 afree 0 async 1073741824 info",
			[]string{"async 0", "afree 0", "async 0", "info 0 0"}},
		{"also while a kernel uses it", "stream use 1 async 1073741824 kernel 20000 afree 0 async 1073741824 info",
			[]string{"stream 0", "use 0", "async 0", "kernel 0", "afree 0", "async 0", "info 0 0"}},
		{"reuse without growth", "async 33554432 1000{ async 1000 afree 1 } sync pick 0 reserved info",
			[]string{"async 0", "failed 0", "sync 0", "pick 0", "reserved 33554432 used 33554432 0", "info 1040187392 0"}},
		{"a synchronisation gives back", "async 100000000 afree 0 info sync info",
			[]string{"async 0", "afree 0", "info 973078528 0", "sync 0", "info 1073741824 0"}},
		{"one of the context too", "async 100000000 afree 0 ctxsync info", []string{"async 0", "afree 0", "ctxsync 0", "info 1073741824 0"}},
		{"one of an event too", "async 100000000 afree 0 event eventsync info",
			[]string{"async 0", "afree 0", "event 0", "eventsync 0", "info 1073741824 0"}},
		{"not what is below the release threshold", "pick 0 keep 67108864 async 134217728 afree 0 sync info trim 33554432 info trim 0 info",
			[]string{"pick 0", "keep 0", "async 0", "afree 0", "sync 0", "info 1006632960 0", "trim 0", "info 1040187392 0",
				"trim 0", "info 1073741824 0"}},
		{"what a pool keeps idle gives way to linear memory", "pick 0 keep 0xffffffffffffffff async 1073741824 afree 0 sync info alloc 1073741824 info",
			[]string{"pick 0", "keep 0", "async 0", "afree 0", "sync 0", "info 0 0", "alloc 0", "info 0 0"}},
		{"and to another pool", "pick 0 keep 0xffffffffffffffff async 1073741824 afree 0 sync mk 0 pick 1 from 1073741824 from 1 info",
			[]string{"pick 0", "keep 0", "async 0", "afree 0", "sync 0", "mk 0", "pick 0", "from 0", "from 2", "info 0 0"}},
		{"two pools share the limit", "mk 0 mk 0 pick 1 from 536870912 pick 2 from 536870912 from 1 pick 1 from 1 info",
			[]string{"mk 0", "mk 0", "pick 0", "from 0", "pick 0", "from 0", "from 2", "pick 0", "from 2", "info 0 0"}},
		{"a pool that is made current", "mk 0 pick 1 current 0 async 1073741824 async 1 reserved afree 0 sync info",
			[]string{"mk 0", "pick 0", "current 0", "async 0", "async 2", "reserved 1073741824 used 1073741824 0", "afree 0", "sync 0",
				"info 1073741824 0"}},
		{"a pool that is destroyed, and its memory with its last allocation",
			"mk 0 pick 1 current 0 async 536870912 async 1 rm info rm from 1 afree 1 afree 0 sync info pick 0 async 1 afree 2 sync info",
			[]string{"mk 0", "pick 0", "current 0", "async 0", "async 0", "rm 0", "info 503316480 0", "rm 1", "from 1", "afree 0", "afree 0",
				"sync 0", "info 1073741824 0", "pick 0", "async 0", "afree 0", "sync 0", "info 1073741824 0"}},
		{"an empty one at once", "mk 0 pick 1 rm rm", []string{"mk 0", "pick 0", "rm 0", "rm 1"}},
		{"not the default one", "pick 0 rm async 1", []string{"pick 0", "rm 1", "async 0"}},
		{"more pools than are kept at once", "300{ mk 0 } pick 1 rm", []string{"failed 44", "pick 0", "rm 0"}},
		{"two streams", "stream stream use 1 async 536870912 kernel 20000 use 2 async 536870912 async 1 use 1 afree 0 use 2 async 536870912 info",
			[]string{"stream 0", "stream 0", "use 0", "async 0", "kernel 0", "use 0", "async 0", "async 2", "use 0", "afree 0", "use 0",
				"async 2", "info 0 0"}},
		{"freed without a stream", "async 1073741824 free 0 info ctxsync info", []string{"async 0", "free 0", "info 0 0", "ctxsync 0", "info 1073741824 0"}},
		{"for per-thread streams", "twin 1 async 1073741824 async 1 afree 0 sync info mk 0 pick 1 from 1073741824 from 1 info",
			[]string{"twin 0", "async 0", "async 2", "afree 0", "sync 0", "info 1073741824 0", "mk 0", "pick 0", "from 0", "from 2", "info 0 0"}},
		{"an imported pool is the exporter's", "mk 0 pick 1 from 1 share pick 2 from 1 info",
			[]string{"mk 0", "pick 0", "from 0", "share 0", "pick 0", "from 801", "info 1040187392 0"}},
		{"the attribute is set", "attr 115", []string{"attr 1 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			staysInside(t, test.script, test.want)
		})
	}
}

// Linear memory may be freed in the order of a stream. It counts until the stream has come so far, and no longer.
func TestLinearMemoryFreedInAStream(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"all of it, again and again", "200{ alloc 1073741824 afree 0 } info", []string{"failed 0", "info 1073741824 0"}},
		{"behind kernels", "stream use 1 20{ alloc 1073741824 kernel 5000 afree 0 } sync info",
			[]string{"stream 0", "use 0", "failed 0", "sync 0", "info 1073741824 0"}},
		{"it counts while a kernel uses it", "stream use 1 alloc 1073741824 kernel 500000 afree 0 async 1073741824 afree 1 sync info",
			[]string{"stream 0", "use 0", "alloc 0", "kernel 0", "afree 0", "async 0", "afree 0", "sync 0", "info 1073741824 0"}},
		{"in many pieces, behind one kernel", "stream use 1 kernel 200000 1000{ alloc 1048576 afree 0 } sync info",
			[]string{"stream 0", "use 0", "kernel 0", "failed 0", "sync 0", "info 1073741824 0"}},
		{"for per-thread streams", "twin 1 50{ alloc 1073741824 kernel 1000 afree 0 } sync info",
			[]string{"twin 0", "failed 0", "sync 0", "info 1073741824 0"}},
		{"pitched", "pitch 1073741824 afree 0 alloc 1073741824 info", []string{"pitch 0", "afree 0", "alloc 0", "info 0 0"}},
		{"managed memory, which the driver refuses", "managed 4096 afree 0 info free 0 info",
			[]string{"managed 0", "afree 1", "info 1073737728 0", "free 0", "info 1073741824 0"}},
		{"twice", "alloc 4096 alloc 4096 afree 0 afree 0 free 0 info",
			[]string{"alloc 0", "alloc 0", "afree 0", "afree 1", "free 1", "info 1073737728 0"}},
		{"while its stream is captured, which frees graphs' memory only",
			"stream use 1 alloc 4096 begin 2 afree 0 end inst 2 launch 0 sync info free 0 info",
			[]string{"stream 0", "use 0", "alloc 0", "begin 0", "afree 0", "end 0", "inst 0", "launch 0", "sync 0", "info 1073737728 0",
				"free 0", "info 1073741824 0"}},
		{"while another stream is captured", "stream stream use 1 alloc 1073741824 begin 0 use 2 afree 0 use 1 end use 2 alloc 1073741824 info",
			[]string{"stream 0", "stream 0", "use 0", "alloc 0", "begin 0", "use 0", "afree 0", "use 0", "end 0", "use 0", "alloc 0", "info 0 0"}},
		{"as a node of a graph, which frees graphs' memory only", "graph alloc 4096 freenode 0 inst 2 launch 0 sync info free 0 info",
			[]string{"graph 0", "alloc 0", "freenode 0", "inst 0", "launch 0", "sync 0", "info 1073737728 0", "free 0", "info 1073741824 0"}},
		{"its context ends before the stream has come so far", "newctx stream use 1 alloc 1073741824 kernel 300000 afree 0 gone use 0 alloc 1073741824 info",
			[]string{"newctx 0", "stream 0", "use 0", "alloc 0", "kernel 0", "afree 0", "gone 0", "use 0", "alloc 0", "info 0 0"}},
		{"in a stream of another context", "alloc 1073741824 newctx stream use 1 kernel 20000 afree 0 gone use 0 alloc 1073741824 info",
			[]string{"alloc 0", "newctx 0", "stream 0", "use 0", "kernel 0", "afree 0", "gone 0", "use 0", "alloc 0", "info 0 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			staysInside(t, test.script, test.want)
		})
	}
}

// What the driver refuses to free stays charged, until it is freed.
func TestFreeInAStreamThatFails(t *testing.T) {
	c := oneGPU(t, giB)
	fail(t, c, "cuMemFreeAsync")
	lines, _ := c.pools(t, "init ctx 0 alloc 1073741824 afree 0 alloc 1 afree 0 alloc 1073741824")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "afree 2", "alloc 2", "afree 0", "alloc 0"}, lines)
}

// The limiter's own events do not decide: without one, the free waits for its stream.
func TestFreeInAStreamWithoutAnEvent(t *testing.T) {
	for _, symbol := range []string{"cuEventCreate", "cuEventRecord"} {
		c := oneGPU(t, giB)
		fail(t, c, symbol)
		lines, _ := c.pools(t, "init ctx 0 alloc 1073741824 kernel 20000 afree 0 alloc 1073741824 info")
		assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "kernel 0", "afree 0", "alloc 0", "info 0 0"}, lines)
		peak, _ := c.peak(t)
		assert.LessOrEqual(t, peak, uint64(giB))
	}
}

// Memory that cuMemAlloc has made managed is to the program what it asked for.
func TestSpilledMemoryFreedInAStream(t *testing.T) {
	c := oversubscribed(t)
	lines, _ := c.pools(t, "init ctx 0 alloc 536870912 alloc 536870912 afree 1 alloc 536870912 free 0 free 2 info")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 0", "afree 0", "alloc 0", "free 0", "free 0", "info 1073741824 0"}, lines)
	assert.Zero(t, c.used(t))
}

// staysInside checks what a script prints in a container of 1 GiB, that it never has more, and that nothing is left of it.
func staysInside(t *testing.T, script string, want []string) {
	t.Helper()
	c := oneGPU(t, giB)
	lines, stderr := c.pools(t, "init ctx 0 "+script)
	require.GreaterOrEqual(t, len(lines), 2)
	assert.Equal(t, want, lines[2:])
	if !strings.Contains(script, "share") {
		assert.Empty(t, stderr)
	}
	peak, now := c.peak(t)
	assert.LessOrEqual(t, peak, uint64(giB))
	assert.Zero(t, now)
	assert.Zero(t, c.used(t), "after the process")
}

// A graph's memory is taken when it is launched, stays with the driver until it is
// trimmed, and is inside the limit.
func TestGraphsInsideTheLimit(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"nodes take nothing, a launch takes all of them", "graph node 536870912 anynode 536870912 inst 2 info launch 0 info",
			[]string{"graph 0", "node 0", "anynode 0", "inst 0", "info 1073741824 0", "launch 0", "info 0 0"}},
		{"those that follow each other take the memory of one",
			"graph nextnode 1073741824 nextnode 1073741824 nextnode 536870912 1000{ nextnode 2097152 } inst 2 launch 0 launch 0 gmem info",
			[]string{"graph 0", "nextnode 0", "nextnode 0", "nextnode 0", "failed 0", "inst 0", "launch 0", "launch 0", "gmem 1073741824 0",
				"info 0 0"}},
		{"and of what is beside them", "graph nextnode 536870912 nextnode 402653184 node 268435456 inst 3 gmem info",
			[]string{"graph 0", "nextnode 0", "nextnode 0", "node 0", "inst 0", "gmem 805306368 0", "info 268435456 0"}},
		{"a byte more does not fit", "graph node 1073741825 inst 2 launch 0 gmem info alloc 1073741824",
			[]string{"graph 0", "node 0", "inst 0", "launch 2", "gmem 0 0", "info 1073741824 0", "alloc 0"}},
		{"it is launched again for nothing, many times", "graph node 1073741824 inst 2 1000{ launch 0 } info gmem",
			[]string{"graph 0", "node 0", "inst 0", "failed 0", "info 0 0", "gmem 1073741824 0"}},
		{"made in every way", "graph node 268435456 inst 0 inst 1 inst 2 launch 0 launch 1 launch 2 info inst 3 upload 0 launch 3 gmem info",
			[]string{"graph 0", "node 0", "inst 0", "inst 0", "inst 0", "launch 0", "launch 0", "launch 0", "info 805306368 0", "inst 0",
				"upload 0", "launch 0", "gmem 268435456 0", "info 805306368 0"}},
		{"an upload at once", "graph node 1073741824 inst 3 info inst 3 info alloc 1 launch 0",
			[]string{"graph 0", "node 0", "inst 0", "info 0 0", "inst 0", "info 0 0", "alloc 0", "launch 2"}},
		{"trimming gives back", "graph node 1073741824 inst 2 launch 0 alloc 1 gtrim info alloc 1 launch 0 free 1 launch 0",
			[]string{"graph 0", "node 0", "inst 0", "launch 0", "alloc 0", "gtrim 0", "info 1073741823 0", "alloc 0", "launch 2", "free 0", "launch 2"}},
		{"what is idle gives way to linear memory", "graph node 1073741824 inst 2 launch 0 ctxsync alloc 1073741824 launch 0 free 0 launch 0",
			[]string{"graph 0", "node 0", "inst 0", "launch 0", "ctxsync 0", "alloc 0", "launch 2", "free 0", "launch 0"}},
		{"what runs does not", "stream use 1 begin 2 async 1073741824 kernel 200000 afree 0 end inst 2 launch 0 alloc 1 launch 0 ctxsync alloc 1",
			[]string{"stream 0", "use 0", "begin 0", "async 0", "kernel 0", "afree 0", "end 0", "inst 0", "launch 0", "alloc 2", "launch 0",
				"ctxsync 0", "alloc 0"}},
		{"two graphs at once need the memory of both",
			"stream stream graph node 536870912 inst 2 graph node 805306368 inst 2 use 1 launch 0 use 2 launch 1 gmem info",
			[]string{"stream 0", "stream 0", "graph 0", "node 0", "inst 0", "graph 0", "node 0", "inst 0", "use 0", "launch 0", "use 0",
				"launch 0", "gmem 805306368 0", "info 268435456 0"}},
		{"a child graph's too", "graph node 536870912 graph child 0 node 536870912 inst 2 launch 0 info alloc 1",
			[]string{"graph 0", "node 0", "graph 0", "child 0", "node 0", "inst 0", "launch 0", "info 0 0", "alloc 0"}},
		{"one that is destroyed gives back when it is trimmed", "graph node 1073741824 inst 2 launch 0 unmake 0 info gtrim info",
			[]string{"graph 0", "node 0", "inst 0", "launch 0", "unmake 0", "info 0 0", "gtrim 0", "info 1073741824 0"}},
		{"memory that outlives its graph", "graph keptnode 1073741824 inst 2 launch 0 ctxsync alloc 1 launch 0 afree 0 launch 0 info",
			[]string{"graph 0", "keptnode 0", "inst 0", "launch 0", "ctxsync 0", "alloc 2", "launch 1", "afree 0", "launch 0", "info 0 0"}},
		{"a refused launch leaves nothing behind", "graph node 536870912 inst 2 alloc 1073741824 launch 0 launch 0 free 0 info launch 0 info",
			[]string{"graph 0", "node 0", "inst 0", "alloc 0", "launch 2", "launch 2", "free 0", "info 1073741824 0", "launch 0", "info 536870912 0"}},
		{"for per-thread streams", "twin 1 graph node 1073741824 inst 3 upload 0 launch 0 alloc 1073741825 info unmake 0 gtrim info",
			[]string{"twin 0", "graph 0", "node 0", "inst 0", "upload 0", "launch 0", "alloc 2", "info 1073741824 0", "unmake 0", "gtrim 0",
				"info 1073741824 0"}},
		{"what graphs have idle gives way to pools", "graph node 536870912 inst 2 launch 0 async 536870912 async 1 afree 0 async 536870912 info",
			[]string{"graph 0", "node 0", "inst 0", "launch 0", "async 0", "async 0", "afree 0", "async 0", "info 503316480 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			staysInside(t, test.script, test.want)
		})
	}
}

// What the library asks of the driver must not end a capture, in whichever mode and
// stream; and what is captured takes nothing until it is launched.
func TestCapturesGoOn(t *testing.T) {
	for _, mode := range []string{"0", "1", "2"} {
		for name, script := range map[string]string{
			"allocations in the captured stream": "stream use 1 begin M async 1073741825 kernel 10 afree 0 capturing end info",
			"and beside it":                      "stream stream use 1 begin M use 2 async 1073741824 async 1 afree 0 use 1 capturing end info",
			"of a pool":                          "mk 0 pick 1 stream use 1 begin M from 4096 kernel 10 afree 0 capturing end info",
			"room is made while it goes on": "pick 0 keep 0xffffffffffffffff async 1073741824 afree 0 sync mk 0 pick 1 stream stream use 1 begin M " +
				"use 2 from 536870912 use 1 capturing end info",
			"a graph is launched beside it": "graph node 1073741824 inst 2 stream stream use 1 begin M use 2 launch 0 launch 0 use 1 capturing end info",
			"and into it":                   "graph node 1073741824 inst 2 stream use 1 begin M launch 0 capturing end info",
			"a stream joins":                "stream stream use 1 begin M event use 2 await async 4096 kernel 10 afree 0 event use 1 await capturing end info",
		} {
			t.Run(name+" mode "+mode, func(t *testing.T) {
				t.Parallel()
				c := oneGPU(t, giB)
				script := strings.ReplaceAll(script, "begin M", "begin "+mode)
				bare, _ := oneGPU(t, 2*giB).bare().pools(t, "init ctx 0 "+script)
				lines, stderr := c.pools(t, "init ctx 0 "+script)
				assert.Contains(t, lines, "capturing 1 0")
				assert.Contains(t, lines, "end 0")
				for i, line := range lines {
					if !strings.HasPrefix(line, "info") && !strings.HasPrefix(line, "async") {
						assert.Equal(t, bare[i], line, "%d", i)
					}
				}
				assert.Empty(t, stderr)
				peak, _ := c.peak(t)
				assert.LessOrEqual(t, peak, uint64(giB))
			})
		}
	}
}

// A driver with pools that grow by more than is expected: what it has taken is charged, what does not fit is
// undone, and the next time the size is expected.
func TestPoolsThatGrowByMore(t *testing.T) {
	for _, test := range []struct {
		name, script string
		limit        uint64
		want         []string
	}{
		{"it fits", "async 1 info async 1 mk 0 pick 1 from 1 info", giB,
			[]string{"async 0", "info 1006632960 0", "async 0", "mk 0", "pick 0", "from 0", "info 939524096 0"}},
		{"it does not", "async 1 info async 1 alloc 50331648 info", 48 * miB,
			[]string{"async 2", "info 50331648 0", "async 2", "alloc 0", "info 0 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := oneGPU(t, test.limit).with("SIMGPU_POOL_CHUNK=67108864")
			lines, stderr := c.pools(t, "init ctx 0 "+test.script)
			assert.Equal(t, test.want, lines[2:])
			assert.Empty(t, stderr)
			assert.Zero(t, c.used(t))
		})
	}
}

// What a process's pool has let go is another process's at once.
func TestPoolsBetweenProcesses(t *testing.T) {
	c := oneGPU(t, giB)
	cmd := c.command(filepath.Join(bin, "pools"), strings.Fields("init ctx 0 async 1073741824 sleep 300 afree 0 sync sleep 60000")...)
	require.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, waitLong, "it has all of it", func() bool { return c.used(t) == giB })
	lines, _ := c.pools(t, "init ctx 0 async 1 alloc 1")
	assert.Equal(t, []string{"async 2", "alloc 2"}, lines[2:])
	eventually(t, waitLong, "it has let go", func() bool { return c.used(t) == 0 })
	lines, _ = c.pools(t, "init ctx 0 async 1073741824")
	assert.Equal(t, []string{"async 0"}, lines[2:])
}

// A killed process's pools and graphs are gone with it.
func TestPoolsOfTheKilled(t *testing.T) {
	c := oneGPU(t, giB)
	c.pools(t, "init ctx 0 async 536870912 graph node 536870912 inst 2 launch 0 kill")
	lines, _ := c.pools(t, "init ctx 0 async 1073741824 info")
	assert.Equal(t, []string{"async 0", "info 0 0"}, lines[2:])
}

// The splits of what is charged, for people.
func TestPoolAndGraphAreReported(t *testing.T) {
	c := oneGPU(t, giB)
	cmd := c.command(filepath.Join(bin, "pools"), strings.Fields("init ctx 0 async 1 graph node 4194304 inst 2 launch 0 alloc 7 sleep 60000")...)
	require.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, waitLong, "it has its memory", func() bool { return c.used(t) == 36*miB+7 })
	f, err := os.ReadFile(c.usage())
	require.NoError(t, err)
	cell := func(at int) uint64 { return binary.LittleEndian.Uint64(f[4096+128+at:]) }
	assert.Equal(t, []uint64{36*miB + 7, 0, 32 * miB, 4 * miB}, []uint64{cell(0), cell(8), cell(24), cell(40)})
}

// Each GPU's pools are its own, whichever context is current.
func TestPoolsOfTwoGPUs(t *testing.T) {
	state := newMachine(t, "H200", "H200")
	c := newContainer(t, state, gpu{gpuIDs[0], 64 * miB}, gpu{gpuIDs[1], 128 * miB})
	lines, stderr := c.pools(t, "init ctx 0 stream ctx 1 stream use 1 async 67108865 async 67108864 use 2 async 134217729 async 134217728 "+
		"use 0 info ctx 0 info mk 1 pick 1 from 1 use 2 afree 1 sync from 134217728 use 1 async 1 info ctx 1 info")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"init 0", "ctx 0", "stream 0", "ctx 0", "stream 0", "use 0", "async 2", "async 0", "use 0", "async 2", "async 0",
		"use 0", "info 0 0", "ctx 0", "info 0 0", "mk 0", "pick 0", "from 2", "use 0", "afree 0", "sync 0", "from 0", "use 0", "async 2",
		"info 0 0", "ctx 0", "info 0 0"}, lines)
}

// Before cuInit and without a context it is the driver's to refuse, and takes no slot.
func TestPoolsBeforeAnything(t *testing.T) {
	c := oneGPU(t, giB)
	lines, stderr := c.pools(t, "async 1 mk 0 init async 1 sync ctxsync gtrim")
	bare, _ := c.bare().pools(t, "async 1 mk 0 init async 1 sync ctxsync gtrim")
	assert.Equal(t, bare, lines)
	assert.Empty(t, stderr)
}
