//go:build root

package oci

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// Files that a container may have mapped are the same files afterwards.
func TestPopulateAgain(t *testing.T) {
	dir := t.TempDir()
	limits, usage := limiter.LimitsPath(dir), limiter.UsagePath(dir)
	require.NoError(t, Populate(dir, ledger.Claim{Shares: one(8000, 30)}, testSettings()))
	before := [2]uint64{inode(t, limits), inode(t, usage)}

	require.NoError(t, Populate(dir, ledger.Claim{Shares: one(8000, 30)}, testSettings()))
	require.NoError(t, Populate(dir, ledger.Claim{Shares: one(4000, 20)}, testSettings()))
	assert.Equal(t, before, [2]uint64{inode(t, limits), inode(t, usage)})
	now, err := limiter.ReadLimits(limits)
	require.NoError(t, err)
	assert.Equal(t, uint64(2), now.Generation, "changed once")
	assert.Equal(t, uint64(4000<<20), now.Devices[0].MemoryLimitBytes)

	require.ErrorContains(t, Populate(dir, ledger.Claim{Shares: []grant.Share{{UUID: gpu1, MemoryMiB: 1}}}, testSettings()), gpu1, "another GPU")
	other := testSettings()
	other.Oversubscription = map[string]float64{gpu0: 2}
	require.Error(t, Populate(dir, ledger.Claim{Shares: one(4000, 20)}, other))

	require.NoError(t, os.Remove(limits))
	require.NoError(t, Populate(dir, ledger.Claim{Shares: one(8000, 30)}, testSettings()), "a directory left half-made")
	file, err := os.ReadFile(limits)
	require.NoError(t, err)
	file[128]++ // the first record's sequence: an agent was killed while it wrote
	require.NoError(t, os.WriteFile(limits, file, 0o600))
	require.NoError(t, Populate(dir, ledger.Claim{Shares: one(8000, 30)}, testSettings()))
	_, err = limiter.ReadLimits(limits)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(limits, []byte("spoilt"), 0o600))
	require.ErrorContains(t, Populate(dir, ledger.Claim{Shares: one(8000, 30)}, testSettings()), "can't be trusted")
}
