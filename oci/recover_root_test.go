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

func TestRecoverSharesReadsWhatPopulateWrote(t *testing.T) {
	dir := claimDir(t)
	want := []grant.Share{
		{UUID: "GPU-aaaaaaaa-0000-4000-8000-000000000001", MemoryMiB: 8000, CorePercent: 30},
		{UUID: "MIG-bbbbbbbb-0000-4000-8000-000000000002", MemoryMiB: 1, CorePercent: 0},
	}
	require.NoError(t, oci.Populate(dir, ledger.Claim{ContainerID: "c1", Shares: want}, oci.Settings{}))
	got, err := oci.RecoverShares(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)

	other := filepath.Join(t.TempDir(), "c2")
	require.NoError(t, os.Mkdir(other, 0o755))
	require.NoError(t, os.Rename(limiter.FilesDir(dir), limiter.FilesDir(other)))
	_, err = oci.RecoverShares(other)
	require.ErrorIs(t, err, limiter.ErrForeign)
	require.NoError(t, os.Rename(limiter.FilesDir(other), limiter.FilesDir(dir)))

	require.NoError(t, os.Truncate(limiter.LimitsPath(dir), 100))
	_, err = oci.RecoverShares(dir)
	require.ErrorContains(t, err, "recover the shares")
}
