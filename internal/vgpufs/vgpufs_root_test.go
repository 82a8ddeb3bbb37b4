//go:build root

package vgpufs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

const gpu = "GPU-00000001-5151-4000-8000-000000000001"

// newClaim is a claim's directory with its file system.
func newClaim(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "claim")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, vgpufs.Mount(dir))
	t.Cleanup(func() { require.NoError(t, vgpufs.RemoveAll(dir)) })
	return dir
}

func populate(t *testing.T, dir string) {
	claim := ledger.Claim{ContainerID: "c1", Shares: []grant.Share{{UUID: gpu, MemoryMiB: 1, CorePercent: 1}}}
	require.NoError(t, oci.Populate(dir, claim, oci.Settings{}))
}

// The files fit, also when each page of the usage file is in use, and a new limits file can
// take the place of the old one. More does not fit.
func TestHoldsTheFilesAndNoMore(t *testing.T) {
	dir := newClaim(t)
	populate(t, dir)
	usage, err := os.OpenFile(limiter.UsagePath(dir), os.O_RDWR, 0)
	require.NoError(t, err)
	defer usage.Close()
	info, err := usage.Stat()
	require.NoError(t, err)
	_, err = usage.WriteAt(make([]byte, info.Size()), 0)
	require.NoError(t, err)
	limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	require.NoError(t, err)
	require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(dir), limits))

	written, err := usage.WriteAt(make([]byte, 1<<20), info.Size())
	require.ErrorIs(t, err, unix.ENOSPC)
	require.LessOrEqual(t, written, 2*os.Getpagesize())
	populate(t, dir) // writes nothing
}

// A second mount would hide the files of the first.
func TestMountsOnce(t *testing.T) {
	dir := newClaim(t)
	populate(t, dir)
	require.NoError(t, vgpufs.Mount(dir))
	require.FileExists(t, limiter.LimitsPath(dir))
}

// A container keeps its files when its claim's directory is removed.
func TestRemoveAllKeepsTheFilesOfWhoHasThemMounted(t *testing.T) {
	dir := newClaim(t)
	populate(t, dir)
	container := filepath.Join(t.TempDir(), "container")
	require.NoError(t, os.Mkdir(container, 0o755))
	require.NoError(t, vgpufs.Bind(dir, container))
	t.Cleanup(func() { require.NoError(t, vgpufs.RemoveAll(container)) })
	require.NoError(t, vgpufs.RemoveAll(dir))
	require.NoDirExists(t, dir)
	require.FileExists(t, limiter.LimitsPath(container))
}

// Directories without a mount, after an interruption, are removed too.
func TestRemoveAllOfWhatIsNotMounted(t *testing.T) {
	dir := newClaim(t)
	require.NoError(t, vgpufs.Unmount(dir))
	require.NoError(t, vgpufs.Unmount(dir))
	require.NoError(t, vgpufs.RemoveAll(dir))
	require.NoError(t, vgpufs.RemoveAll(dir))
	require.NoError(t, vgpufs.RemoveAll(filepath.Join(dir, "none")))
}
