//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// Of two rewrites that follow one another the second counts, whichever of a process's
// threads read which, and when.
func TestThreadsFollowTheLastRewrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "follow")
	require.NoError(t, compile(program, "testdata/follow.c", "-pthread", "-L"+filepath.Join(built, "sim"), "-l:libcuda.so.1"))
	c := oneGPU(t, giB)
	p := talk(t, c.command(program, "8"))
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(t, err)
	for i := range 500 {
		for _, more := range []uint64{1, 2, 3} {
			limits.Devices[0].MemoryLimitBytes = giB + uint64(i)*10 + more
			require.NoError(t, limiter.UpdateLimits(c.dir, limits))
		}
		p.tell(t, "?")
		require.Equal(t, fmt.Sprintf("total %d", limits.Devices[0].MemoryLimitBytes), p.hear(t))
	}
}

// The agent was killed while it rewrote a record: processes keep to what they read
// before, new ones are denied, and with the next rewrite all is as it was.
func TestKilledWriter(t *testing.T) {
	c := oneGPU(t, giB)
	p := talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 alloc 1 line alloc 1073741823 alloc 1 line alloc 1048575 line")...))
	for range 3 {
		assert.Regexp(t, " 0$", p.hear(t))
	}
	file, err := os.OpenFile(c.limits(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	record := make([]byte, 32)
	_, err = file.ReadAt(record, 128)
	require.NoError(t, err)
	record[0]++  // the sequence
	record[24]++ // the limit
	record[30] = 1
	_, err = file.WriteAt(record, 128)
	require.NoError(t, err)
	_, err = limiter.ReadLimits(c.limits())
	require.ErrorIs(t, err, limiter.ErrHalfWritten)

	p.tell(t, "")
	assert.Equal(t, "alloc 0", p.hear(t), "up to the limit that was")
	assert.Equal(t, "alloc 2", p.hear(t))
	lines, stderr := c.probe(t, "init alloc 1")
	assert.Equal(t, []string{"init 3", "alloc 3"}, lines)
	assert.Contains(t, stderr, "limits")

	require.NoError(t, limiter.UpdateLimits(c.dir, limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: gpuIDs[0], MemoryLimitBytes: giB + miB}}}))
	p.tell(t, "")
	assert.Equal(t, "alloc 0", p.hear(t))
	lines, _ = c.probe(t, "init ctx 0 alloc 1 alloc 1")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
}
