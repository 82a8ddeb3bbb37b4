package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
)

func TestRecoverSharesReadsWhatPopulateWrote(t *testing.T) {
	dir := t.TempDir()
	want := []grant.Share{
		{UUID: "GPU-aaaaaaaa-0000-4000-8000-000000000001", MemoryMiB: 8000, CorePercent: 30},
		{UUID: "MIG-bbbbbbbb-0000-4000-8000-000000000002", MemoryMiB: 1, CorePercent: 0},
	}
	require.NoError(t, oci.Populate(dir, grant.Claim{Shares: want}, oci.Settings{}))
	got, err := oci.RecoverShares(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, os.Truncate(filepath.Join(dir, "limits"), 100))
	_, err = oci.RecoverShares(dir)
	require.ErrorContains(t, err, "recover shares")
}
