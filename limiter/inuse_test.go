package limiter

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestUsageInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	_, err := UsageInUse(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, CreateUsage(path, []string{"GPU-aaaaaaaa-0000-4000-8000-000000000001"}))
	inUse := func() bool {
		used, err := UsageInUse(path)
		require.NoError(t, err)
		return used
	}
	require.False(t, inUse())

	// A tenant writes an owner into a slot: that is not a process.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{1, 2, 3, 0}, int64(usageHeaderSize))
	require.NoError(t, err)
	require.False(t, inUse())

	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1 + 700, Len: 1}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	require.True(t, inUse())
	require.NoError(t, f.Close())
	require.False(t, inUse())
}
