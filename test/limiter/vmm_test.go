package limiter_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func virtualProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "virtual")
	require.NoError(t, compile(program, "testdata/virtual.c"))
	return program
}

// The library's account follows the driver's, call by call: virtual memory, arrays
// of all shapes, and what is imported.
func TestAccountFollowsTheDriver(t *testing.T) {
	program := virtualProgram(t)
	for _, part := range []string{"own", "others"} {
		t.Run(part, func(t *testing.T) {
			c := newContainer(t, newMachine(t, "H200:context_mib=0"), card{gpuIDs[0], 100 * giB})
			bare, _ := c.bare().run(t, program, part)
			with, stderr := c.run(t, program, part)
			for i := range min(len(bare), len(with)) { // the first difference says enough
				require.Equal(t, bare[i], with[i], "line %d", i)
			}
			assert.Len(t, with, len(bare))
			assert.Empty(t, stderr)
			assert.Greater(t, len(bare), 15)
			changes := 0
			for _, line := range bare {
				if !strings.HasSuffix(line, " 0") {
					changes++
				}
			}
			assert.Greater(t, changes, 2, "the test tests nothing")
			assert.Zero(t, c.used(t))
		})
	}
}

// cuda-python's order: create, map, release, …, unmap. The memory is the program's
// until the unmap, and no byte of it can be had twice.
func TestReleasedButMappedStaysCharged(t *testing.T) {
	c := oneCard(t, 8*miB)
	lines, _ := c.probe(t, "init ctx 0 vreserve 64 vcreate 0 8 vmap 0 0 8 0 vrelease 0 info vcreate 0 2 alloc 1 vunmap 0 0 8 info alloc 8388608")
	assert.Equal(t, []string{"init 0", "ctx 0", "vreserve 0", "vcreate 0", "vmap 0", "vrelease 0", "info 0 free 0 total 8388608",
		"vcreate 2", "alloc 2", "vunmap 0", "info 0 free 8388608 total 8388608", "alloc 0"}, lines)
	peak, now := c.peak(t)
	assert.EqualValues(t, 8*miB, peak)
	assert.Zero(t, now)
}

// By location, whatever context is current, or none.
func TestVirtualMemoryIsChargedWhereItLies(t *testing.T) {
	state := newMachine(t, "H200", "H200", "H200")
	c := newContainer(t, state, card{gpuIDs[1], 4 * miB}, card{gpuIDs[0], 8 * miB}).with("CUDA_VISIBLE_DEVICES=0,1")
	lines, stderr := c.probe(t, "init vcreate 1 6 vcreate 1 4 vcreate 0 8 vcreate 0 2 vcreate -2 64 ctx 0 info ctx 1 info vrelease 0 info")
	assert.Equal(t, []string{"init 0", "vcreate 2", "vcreate 0", "vcreate 0", "vcreate 2", "vcreate 0",
		"ctx 0", "info 0 free 0 total 8388608", "ctx 0", "info 0 free 0 total 4194304", "vrelease 0", "info 0 free 4194304 total 4194304"}, lines)
	assert.Empty(t, stderr)
	denied := newContainer(t, state, card{gpuIDs[1], 4 * miB})
	lines, _ = denied.probe(t, "init vcreate 0 2 vcreate 1 2")
	assert.Equal(t, []string{"init 0", "vcreate 3", "vcreate 0"}, lines)
	for _, kind := range []string{"0", "5", "9"} { // nowhere, and what drivers of tomorrow may know
		lines, stderr = c.probe(t, "init vlocation "+kind+" vcreate 0 2")
		assert.Equal(t, "vcreate 801", lines[1])
		assert.Contains(t, stderr, "cuMemCreate: memory at a kind of location that this limiter does not know")
	}
}

// The driver refuses: the reservation is undone; and what it refuses to give back
// stays charged.
func TestRefusalsOfVirtualMemory(t *testing.T) {
	c := oneCard(t, 8*miB)
	for _, test := range []struct{ symbol, script, want string }{
		{"cuMemCreate", "vcreate 0 8 vcreate 0 8 info", "vcreate 2;vcreate 0;info 0 free 0 total 8388608"},
		{"cuMemRelease", "vcreate 0 8 vrelease 0 info vrelease 0 info",
			"vcreate 0;vrelease 2;info 0 free 0 total 8388608;vrelease 0;info 0 free 8388608 total 8388608"},
		{"cuMemMap", "vcreate 0 8 vmap 0 0 8 0 vrelease 0 info", "vcreate 0;vmap 2;vrelease 0;info 0 free 8388608 total 8388608"},
		{"cuMemUnmap", "vcreate 0 8 vmap 0 0 8 0 vrelease 0 vunmap 0 0 8 info vunmap 0 0 8 info",
			"vcreate 0;vmap 0;vrelease 0;vunmap 2;info 0 free 0 total 8388608;vunmap 0;info 0 free 8388608 total 8388608"},
		{"cuMemRetainAllocationHandle", "vcreate 0 8 vmap 0 0 8 0 vretain 0 0 vrelease 0 vunmap 0 0 8 info",
			"vcreate 0;vmap 0;vretain 2;vrelease 0;vunmap 0;info 0 free 8388608 total 8388608"},
	} {
		t.Run(test.symbol, func(t *testing.T) {
			fail(t, c, test.symbol)
			lines, _ := c.probe(t, "init ctx 0 vreserve 64 "+test.script)
			assert.Equal(t, strings.Split(test.want, ";"), lines[3:])
			assert.Zero(t, c.used(t))
		})
	}
}

// Each retained reference must be released; only then the memory ends.
func TestRetainedReferences(t *testing.T) {
	c := oneCard(t, 8*miB)
	lines, _ := c.probe(t, "init ctx 0 vreserve 64 vcreate 0 8 vmap 0 0 8 0 vretain 0 4 vretain 0 0 vrelease 0 vrelease 1 vunmap 0 0 8 info vrelease 2 info")
	assert.Equal(t, []string{"info 0 free 0 total 8388608", "vrelease 0", "info 0 free 8388608 total 8388608"}, lines[len(lines)-3:])
}

// Many chunks stay fast and exact.
func TestManyChunks(t *testing.T) {
	c := newContainer(t, newMachine(t, "H200"), card{gpuIDs[0], 100 * giB})
	lines, _ := c.probe(t, "init ctx 0 vreserve 102400 vmany 40000 2 info vcreate 0 20480 vunmap 0 0 80000 info")
	total := uint64(100 * giB)
	assert.Equal(t, []string{"vmany 40000 0", fmt.Sprintf("info 0 free %d total %d", total-80000*miB, total), "vcreate 0", "vunmap 0",
		fmt.Sprintf("info 0 free %d total %d", total-20480*miB, total)}, append(lines[3:4:4], lines[4], lines[5], lines[6], lines[7]))
}

// Processes with threads that make, map, retain, release and unmap at random, some of
// them killed: never a byte over, and nothing is left.
func TestVirtualMemoryUnderKills(t *testing.T) {
	const limit = 400 * miB
	c := newContainer(t, newMachine(t, "H200:context_mib=0"), card{gpuIDs[0], limit})
	program := filepath.Join(t.TempDir(), "segments")
	require.NoError(t, compile(program, "testdata/segments.c", "-pthread"))
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := c.command(program, "3", fmt.Sprint(i), "3")
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if !assert.NoError(t, cmd.Start()) {
				return
			}
			if i%2 == 0 {
				time.AfterFunc(time.Duration(300+100*i)*time.Millisecond, func() { cmd.Process.Kill() })
			}
			err := cmd.Wait()
			if i%2 != 0 {
				assert.NoError(t, err)
				assert.Contains(t, out.String(), "wrong 0")
			}
		}()
	}
	wg.Wait()
	peak, now := c.peak(t)
	assert.LessOrEqual(t, peak, uint64(limit))
	assert.Greater(t, peak, uint64(limit)*9/10, "the limit was never approached: the test tests nothing")
	assert.Zero(t, now)
	assert.Zero(t, c.used(t))
	lines, _ := c.probe(t, "init ctx 0 vcreate 0 400 vcreate 0 2 info")
	assert.Equal(t, []string{"vcreate 0", "vcreate 2", fmt.Sprintf("info 0 free 0 total %d", limit)}, lines[2:])
}

// A reference that is got while the last known one goes.
func TestRetainRacesUnmap(t *testing.T) {
	program := filepath.Join(t.TempDir(), "retain")
	require.NoError(t, compile(program, "testdata/retain.c", "-pthread"))
	c := oneCard(t, 2*miB)
	lines, stderr := c.run(t, program, "20000")
	t.Log(lines)
	assert.Empty(t, stderr)
	assert.Contains(t, lines[0], "wrong 0")
	peak, _ := c.peak(t)
	assert.EqualValues(t, 2*miB, peak)
}
