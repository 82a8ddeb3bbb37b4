//go:build root

package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

func TestRecoverClaimReadsWhatPopulateWrote(t *testing.T) {
	dir := claimDir(t)
	want := []grant.Share{
		{UUID: "GPU-aaaaaaaa-0000-4000-8000-000000000001", MemoryMiB: 8000, CorePercent: 30},
		{UUID: "MIG-bbbbbbbb-0000-4000-8000-000000000002", MemoryMiB: 1, CorePercent: 0},
	}
	claim := ledger.Claim{ContainerID: "c1", Shares: want, CoreCeiling: 60, CorePolicy: limiter.PolicyForce, HighPriority: true, TurnID: limiter.TurnIDOf("c1", "")}
	require.NoError(t, oci.Populate(dir, claim, oci.Settings{}))
	got, err := oci.RecoverClaim(dir)
	require.NoError(t, err)
	claim.ContainerID = ""
	require.Equal(t, claim, got)

	other := filepath.Join(t.TempDir(), "c2")
	require.NoError(t, os.Mkdir(other, 0o755))
	require.NoError(t, os.Rename(limiter.FilesDir(dir), limiter.FilesDir(other)))
	_, err = oci.RecoverClaim(other)
	require.ErrorIs(t, err, limiter.ErrForeign)
	require.NoError(t, os.Rename(limiter.FilesDir(other), limiter.FilesDir(dir)))

	require.NoError(t, os.Truncate(limiter.LimitsPath(dir), 100))
	_, err = oci.RecoverClaim(dir)
	require.ErrorContains(t, err, "recover the shares")
}
