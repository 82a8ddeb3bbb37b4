//go:build root

package nriplugin_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// A container fills the state directory by writing past the end of its usage file: the
// next one is created all the same.
func TestStateDirFilledByATenant(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"), "as root")
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	f := newFixture(t, func(c *nriplugin.Config) {
		var err error
		c.Ledger, err = ledger.Open(dir)
		require.NoError(t, err)
		writesLimits(c)
	})
	first := newContainer("main")
	_, err := f.runtime.create(newPod("first", hami(gpuA, 1000, 10)), first)
	require.NoError(t, err)
	usage, err := os.OpenFile(limiter.UsagePath(f.ledger.Dir(first.Id)), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer usage.Close()
	for err == nil {
		_, err = usage.Write(make([]byte, 1<<16))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)

	_, err = f.runtime.create(newPod("second", hami(gpuA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
	info, err := usage.Stat()
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(2<<20))
}

// An agent that was killed while it wrote a container's limits again: the next one writes
// them as it starts.
func TestHalfWrittenLimitsAreFixed(t *testing.T) {
	f := newFixture(t, writesLimits)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", hami(gpuA, 80000, 10)), ctr)
	require.NoError(t, err)
	path := limiter.LimitsPath(f.ledger.Dir(ctr.Id))
	want, err := limiter.ReadLimits(path)
	require.NoError(t, err)
	f.stop()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{1}, 128) // the first record's sequence
	require.NoError(t, errors.Join(err, file.Close()))
	_, err = limiter.ReadLimits(path)
	require.ErrorIs(t, err, limiter.ErrHalfWritten)

	f.start()
	require.EventuallyWithT(t, func(c *assert.CollectT) { // limits are written after the plugin is ready
		got, err := limiter.ReadLimits(path)
		require.NoError(c, err)
		require.Equal(c, want.Devices, got.Devices)
	}, time.Minute, time.Millisecond)
}
