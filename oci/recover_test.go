package oci_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
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

func TestMountedSharesStayInTheContainersRoot(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	want := []grant.Share{{UUID: "GPU-aaaaaaaa-0000-4000-8000-000000000001", MemoryMiB: 8000, CorePercent: 30}}
	require.NoError(t, oci.Populate(dir, grant.Claim{Shares: want}, oci.Settings{}))
	mounted := filepath.Join(root, filepath.Dir(limiter.ContainerLimitsPath))
	limits := filepath.Join(mounted, "limits")
	require.NoError(t, os.MkdirAll(mounted, 0o755))
	require.NoError(t, os.Link(filepath.Join(dir, "limits"), limits))
	got, err := oci.MountedShares(root)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, os.Remove(limits))
	_, err = oci.MountedShares(root)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Symlink(filepath.Join(dir, "limits"), limits))
	_, err = oci.MountedShares(root)
	require.ErrorContains(t, err, "is not a regular file", "a link to the host's")
	require.NoError(t, os.Remove(limits))
	require.NoError(t, unix.Mkfifo(limits, 0o600))
	_, err = oci.MountedShares(root)
	require.ErrorContains(t, err, "is not a regular file", "a pipe, which nobody writes to")
	require.NoError(t, os.RemoveAll(mounted))
	require.NoError(t, os.Symlink(dir, mounted))
	_, err = oci.MountedShares(root)
	require.ErrorIs(t, err, fs.ErrNotExist, "a link to a folder of the host's")
}
