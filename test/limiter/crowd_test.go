//go:build root

package limiter_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// More processes than there are slots: as many as there are slots join, all at once, and the others get
// NOT_INITIALIZED. When some die, as many of the others join by another try, without a notification of the
// deaths. On the fake driver: what the simulated one does at a join grows with the number of processes.
func TestMoreProcessesThanSlots(t *testing.T) {
	const more, kills, bytes, context = 140, 50, miB, miB
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=1"), context, gpu{gpuIDs[0], 4 * giB})
	c.sim = fakeDriver(t)
	require.NoError(t, compile(filepath.Join(bin, "crowd"), "testdata/crowd.c"))
	crowd := talk(t, c.command(filepath.Join(bin, "crowd"), "1100", "1048576"))
	require.Equal(t, 1100, limiter.MaxProcesses+more)
	full := uint64(limiter.MaxProcesses * (bytes + context))
	holds := func(want uint64) {
		assert.Equal(t, want, c.used(t))
	}

	start := time.Now()
	assert.Equal(t, "0: 960, 3: 140", crowd.hear(t))
	t.Logf("1100 at once: %s", time.Since(start))
	holds(full)
	crowd.tell(t, "again")
	assert.Equal(t, "0: 960, 3: 140", crowd.hear(t), "still so")

	crowd.tell(t, "kill 50")
	assert.Equal(t, "0: 910, 3: 140", crowd.hear(t))
	holds(full - kills*(bytes+context))
	crowd.tell(t, "again")
	assert.Equal(t, "0: 960, 3: 90", crowd.hear(t), "the slots of the dead")
	holds(full)

	lines, stderr := c.probe(t, "init")
	assert.Equal(t, []string{"init 3"}, lines)
	assert.Contains(t, stderr, "all 960 process slots of this container are taken")

	require.NoError(t, crowd.in.Close())
	require.NoError(t, crowd.cmd.Wait())
	eventually(t, waitLong, "all are gone", func() bool { return c.used(t) == 0 })
	lines, stderr = c.probe(t, "init ctx 0 alloc 4293918720 alloc 1")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
	assert.Empty(t, stderr)
}
