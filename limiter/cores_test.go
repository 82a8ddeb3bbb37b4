package limiter

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// claimDir is the directory of a claim without files.
func claimDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Dir(LimitsPath(dir)), 0o755))
	return dir
}

func TestReadCoreUsage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	file := usageImage(t)
	b := file[usageOffCompute+usageComputeSize:]
	le.PutUint64(b[computeOffBusy:], 5)
	le.PutUint64(b[computeOffThrottled:], ^uint64(0))
	le.PutUint64(b[computeOffLaunches:], 7)
	require.NoError(t, os.WriteFile(path, file, 0o666))
	want := []CoreUsage{{}, {BusyNanoseconds: 5, ThrottledNanoseconds: ^uint64(0), Launches: 7}}
	cores, err := ReadCoreUsage(path)
	require.NoError(t, err)
	assert.Equal(t, want, cores)
	u, err := ReadUsage(path)
	require.NoError(t, err)
	assert.Equal(t, want[1], u.Devices[1].Cores)

	require.NoError(t, os.Truncate(path, 2000))
	_, err = ReadCoreUsage(path)
	assert.ErrorIs(t, err, ErrUsage)
	require.NoError(t, os.Symlink(path, path+"2"))
	_, err = ReadCoreUsage(path + "2")
	assert.Error(t, err)
}
