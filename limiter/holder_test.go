package limiter

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newClaim makes the files of a claim.
func newClaim(t *testing.T) string {
	t.Helper()
	dir := claimDir(t)
	require.NoError(t, WriteLimits(LimitsPath(dir), testLimits()))
	require.NoError(t, CreateUsage(UsagePath(dir), testLimits().UUIDs()))
	return dir
}

// lease takes a lease on a file, as a process of a container may.
func lease(t *testing.T, path string, kind int) (file *os.File, err error) {
	t.Helper()
	file, err = os.Open(path)
	require.NoError(t, err)
	if err = setLease(file, kind); err != nil {
		file.Close()
		return nil, err
	}
	t.Cleanup(func() { file.Close() })
	return file, nil
}

func setLease(file *os.File, kind int) error {
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, kind)
	return err
}

func TestNothingWaitsForAFileThatAProcessHoldsALeaseOn(t *testing.T) {
	dir := newClaim(t)
	for _, path := range []string{LimitsPath(dir), UsagePath(dir)} {
		_, err := lease(t, path, unix.F_WRLCK)
		require.NoError(t, err)
	}
	var r Reader
	for name, do := range map[string]func() error{
		"ReadLimits":     func() error { _, err := ReadLimits(LimitsPath(dir)); return err },
		"ReadResidue":    func() error { _, err := ReadResidue(LimitsPath(dir)); return err },
		"UpdateLimits":   func() error { return UpdateLimits(dir, testLimits()) },
		"UpdateResidue":  func() error { return UpdateResidue(dir, make([]uint64, len(testLimits().Devices))) },
		"Wake":           func() error { return Wake(dir) },
		"ReadUsage":      func() error { _, err := ReadUsage(UsagePath(dir)); return err },
		"ReadCoreUsage":  func() error { _, err := ReadCoreUsage(UsagePath(dir)); return err },
		"CheckUsage":     func() error { return CheckUsage(UsagePath(dir), testLimits().UUIDs()) },
		"UsageInUse":     func() error { _, err := UsageInUse(UsagePath(dir)); return err },
		"Reader.Usage":   func() error { _, err := r.Usage(UsagePath(dir), nil); return err },
		"Reader.Residue": func() error { _, err := r.Residue(LimitsPath(dir)); return err },
	} {
		assert.ErrorIs(t, do(), ErrLeased, name)
	}
}

func TestTrimUsageDoesNotWaitForALease(t *testing.T) {
	dir := newClaim(t)
	require.NoError(t, os.Truncate(UsagePath(dir), 2*usageSize))
	_, err := lease(t, UsagePath(dir), unix.F_RDLCK)
	require.NoError(t, err)
	_, err = TrimUsage(UsagePath(dir))
	require.ErrorIs(t, err, ErrLeased)
}

func TestALockOnTheLimitsFileDelaysNoWriter(t *testing.T) {
	dir := newClaim(t)
	file, err := os.Open(LimitsPath(dir))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	require.NoError(t, UpdateLimits(dir, testLimits()))
	require.NoError(t, UpdateResidue(dir, make([]uint64, len(testLimits().Devices))))
	require.NoError(t, Wake(dir))
}

func TestAWriterGivesUpOnAnotherOne(t *testing.T) {
	dir := newClaim(t)
	lock, err := os.Create(LockPath(dir))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	assert.ErrorContains(t, Wake(dir), "another process holds it")
}

func TestHolderLeavesNoLease(t *testing.T) {
	dir := newClaim(t)
	var h Holder
	require.NoError(t, h.Hold("c1", dir))
	for _, path := range []string{LimitsPath(dir), UsagePath(dir)} {
		for _, kind := range []int{unix.F_RDLCK, unix.F_WRLCK} {
			_, err := lease(t, path, kind)
			assert.ErrorIs(t, err, unix.EAGAIN)
		}
	}

	// The directory gets its name, and later new files.
	named := dir + "-named"
	require.NoError(t, os.Rename(dir, named))
	require.NoError(t, h.Follow(func() (map[string]string, error) { return map[string]string{"c1": named}, nil }))
	require.NoError(t, os.Remove(UsagePath(named)))
	require.NoError(t, CreateUsage(UsagePath(named), testLimits().UUIDs()))
	require.NoError(t, h.Hold("c1", named))
	_, err := lease(t, UsagePath(named), unix.F_WRLCK)
	assert.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, os.Remove(UsagePath(named)))
	require.NoError(t, h.Hold("c1", named), "the claim is just removed")

	made := newClaim(t)
	require.NoError(t, h.Follow(func() (map[string]string, error) {
		return nil, h.Hold("c2", made) // reserved after the list was made
	}))
	_, err = lease(t, LimitsPath(named), unix.F_WRLCK)
	assert.NoError(t, err, "the claim is gone")
	_, err = lease(t, LimitsPath(made), unix.F_WRLCK)
	assert.ErrorIs(t, err, unix.EAGAIN)
	failed := errors.New("no list")
	require.ErrorIs(t, h.Follow(func() (map[string]string, error) { return nil, failed }), failed)
	h.Close()
	_, err = lease(t, LimitsPath(made), unix.F_WRLCK)
	assert.NoError(t, err)
}

func TestOpenOfNoRegularFile(t *testing.T) {
	dir := claimDir(t)
	require.NoError(t, unix.Mkfifo(LimitsPath(dir), 0o666))
	_, err := ReadLimits(LimitsPath(dir))
	require.ErrorIs(t, err, errNotRegular)
	require.NoError(t, os.Remove(LimitsPath(dir)))
	require.NoError(t, os.Symlink("/dev/zero", LimitsPath(dir)))
	_, err = ReadLimits(LimitsPath(dir))
	require.ErrorIs(t, err, unix.ELOOP)
	require.NotErrorIs(t, err, fs.ErrNotExist)
}

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
		"after the limiter's":  {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, usageLockLast+1, 1), []Lock{usage}},
		"the limiter's":        {usage, bytes(unix.F_OFD_SETLK, unix.F_WRLCK, usageLockSlow, 1+2*usageSlots), nil},
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
