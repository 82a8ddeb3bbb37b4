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

func coresFile(t *testing.T) (dir, path string, limits Limits) {
	t.Helper()
	dir = claimDir(t)
	path = LimitsPath(dir)
	limits = Limits{Devices: []DeviceLimit{
		{UUID: testGPU, MemoryLimitBytes: 1 << 30, CorePercent: 30, CoreSoftPercent: 80},
		{UUID: testMIG, MemoryLimitBytes: 1 << 31, CorePercent: 100, Policy: PolicyForce},
	}}
	require.NoError(t, WriteLimits(path, limits))
	return dir, path, limits
}

func TestUpdateCores(t *testing.T) {
	dir, path, limits := coresFile(t)
	states, err := ReadCores(path)
	require.NoError(t, err)
	require.Equal(t, []CoreState{{}, {}}, states)

	want := []CoreState{{Contended: true, Correction: 1250, ElasticPercent: 44}, {Blocked: true}}
	require.NoError(t, UpdateCores(dir, want))
	states, err = ReadCores(path)
	require.NoError(t, err)
	assert.Equal(t, want, states)
	is, err := ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(2), is.Generation)
	assert.Equal(t, limits.Devices, is.Devices, "and the limits are what they were")

	require.NoError(t, UpdateCores(dir, want))
	is, err = ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(2), is.Generation, "unchanged")
	require.NoError(t, Wake(dir))
	is, err = ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(3), is.Generation)

	limits.Devices[0].CorePercent = 50
	require.NoError(t, UpdateLimits(dir, limits))
	states, err = ReadCores(path)
	require.NoError(t, err)
	assert.Equal(t, want, states, "new limits keep the state")

	require.NoError(t, UpdateCores(dir, []CoreState{{}, {}}))
	states, err = ReadCores(path)
	require.NoError(t, err)
	assert.Equal(t, []CoreState{{}, {}}, states)
}

// A writer of limits repairs what another left half-way; the state was lost with it.
func TestUpdateLimitsAfterADeadWriterOfCores(t *testing.T) {
	dir, path, limits := coresFile(t)
	require.NoError(t, UpdateCores(dir, []CoreState{{Contended: true}, {Contended: true}}))
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	file[limitsHeaderSize] |= 1
	require.NoError(t, os.WriteFile(path, file, 0o644))
	require.NoError(t, UpdateLimits(dir, limits))
	states, err := ReadCores(path)
	require.NoError(t, err)
	assert.Equal(t, []CoreState{{}, {Contended: true}}, states)
}

func TestReadCoreUsage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	file := usageImage(t)
	b := file[usageOffBuckets+usageBucketSize:]
	le.PutUint64(b[bucketOffSpent:], 5)
	le.PutUint64(b[bucketOffThrottled:], ^uint64(0))
	le.PutUint64(b[bucketOffLaunches:], 7)
	require.NoError(t, os.WriteFile(path, file, 0o666))
	want := []CoreUsage{{}, {ChargedNanoseconds: 5, ThrottledNanoseconds: ^uint64(0), Launches: 7}}
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
