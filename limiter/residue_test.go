package limiter

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func residueFile(t *testing.T) (dir, path string, limits Limits) {
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

func TestUpdateResidue(t *testing.T) {
	dir, path, limits := residueFile(t)
	residue, err := ReadResidue(path)
	require.NoError(t, err)
	require.Equal(t, []uint64{0, 0}, residue)

	want := []uint64{77, 1 << 40}
	require.NoError(t, UpdateResidue(dir, want))
	residue, err = ReadResidue(path)
	require.NoError(t, err)
	assert.Equal(t, want, residue)
	is, err := ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(2), is.Generation)
	assert.Equal(t, limits.Devices, is.Devices, "and the limits are what they were")

	require.NoError(t, UpdateResidue(dir, want))
	is, err = ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(2), is.Generation, "unchanged")
	require.NoError(t, Wake(dir))
	is, err = ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(3), is.Generation)

	limits.Devices[0].CorePercent = 50
	require.NoError(t, UpdateLimits(dir, limits))
	residue, err = ReadResidue(path)
	require.NoError(t, err)
	assert.Equal(t, want, residue, "new limits keep the residue")
}

// Processes measure their residue until the agent's loop has written once; new limits change nothing of that.
func TestUnmeasured(t *testing.T) {
	dir := claimDir(t)
	limits := Limits{Devices: []DeviceLimit{{UUID: testGPU, MemoryLimitBytes: 1 << 30, Unmeasured: true}}}
	unmeasured := func(want bool) {
		t.Helper()
		is, err := ReadLimits(LimitsPath(dir))
		require.NoError(t, err)
		assert.Equal(t, want, is.Devices[0].Unmeasured)
	}
	require.NoError(t, WriteLimits(LimitsPath(dir), limits))
	unmeasured(true)
	limits.Devices[0].CorePercent = 50
	require.NoError(t, UpdateLimits(dir, limits))
	unmeasured(true)
	require.NoError(t, UpdateResidue(dir, []uint64{0}))
	unmeasured(false)
	require.NoError(t, UpdateLimits(dir, limits))
	unmeasured(false)
}

// A writer of limits repairs what another left half-way; the residue was lost with it.
func TestUpdateLimitsAfterADeadWriterOfAResidue(t *testing.T) {
	dir, path, limits := residueFile(t)
	require.NoError(t, UpdateResidue(dir, []uint64{5, 6}))
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	file[limitsHeaderSize] |= 1
	require.NoError(t, os.WriteFile(path, file, 0o644))
	require.NoError(t, UpdateLimits(dir, limits))
	residue, err := ReadResidue(path)
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 6}, residue)
}
