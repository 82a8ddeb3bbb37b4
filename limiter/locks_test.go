package limiter

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestHolderFindsLocks(t *testing.T) {
	limits, usage := Lock{}, Lock{Usage: true}
	bytes := func(command int, kind int16, start, length int64) func(*os.File) error {
		return func(f *os.File) error {
			return unix.FcntlFlock(f.Fd(), command, &unix.Flock_t{Type: kind, Start: start, Len: length})
		}
	}
	flock := func(how int) func(*os.File) error {
		return func(f *os.File) error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) }
	}
	for name, test := range map[string]struct {
		on   Lock
		lock func(*os.File) error
		want []Lock
	}{
		"exclusive":            {limits, flock(unix.LOCK_EX), []Lock{limits}},
		"shared":               {limits, flock(unix.LOCK_SH), []Lock{limits}},
		"usage":                {usage, flock(unix.LOCK_SH), []Lock{usage}},
		"byte":                 {limits, bytes(unix.F_OFD_SETLK, unix.F_RDLCK, 1<<50, 1), []Lock{limits}},
		"usage's byte":         {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, 0, 1), []Lock{usage}},
		"before the limiter's": {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, usageLockSlow-1, 2), []Lock{usage}},
		"after the limiter's":  {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, usageLockSlow+1+usageSlots, 1), []Lock{usage}},
		"the limiter's":        {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, usageLockSlow, 1+usageSlots), nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newClaim(t)
			var h Holder
			defer h.Close()
			found, err := h.Locks("c1", dir)
			require.NoError(t, err)
			require.Empty(t, found)
			path := LimitsPath(dir)
			if test.on.Usage {
				path = UsagePath(dir)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			require.NoError(t, test.lock(f))
			for range 2 {
				found, err = h.Locks("c1", dir)
				require.NoError(t, err)
				assert.Equal(t, test.want, found)
			}
			require.NoError(t, f.Close())
			found, err = h.Locks("c1", dir)
			require.NoError(t, err)
			assert.Empty(t, found)
			f, err = os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			assert.NoError(t, test.lock(f), "the holder keeps no lock")
		})
	}
}

func TestHolderFindsLeases(t *testing.T) {
	dir := newClaim(t)
	_, err := lease(t, LimitsPath(dir), unix.F_RDLCK)
	require.NoError(t, err)
	_, err = lease(t, UsagePath(dir), unix.F_WRLCK)
	require.NoError(t, err)
	var h Holder
	defer h.Close()
	found, err := h.Locks("c1", dir)
	require.NoError(t, err)
	assert.Equal(t, []Lock{{Lease: true}, {Usage: true, Lease: true}}, found)
	assert.Equal(t, "a lease on its limits file (/.gpuslice/limits)", found[0].String())

	require.NoError(t, os.RemoveAll(FilesDir(dir)))
	found, err = h.Locks("c2", dir)
	require.NoError(t, err)
	assert.Empty(t, found, "the claim is just removed")
}
