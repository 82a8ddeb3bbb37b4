package oci_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

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
	got, err := oci.MountedShares(root, time.Minute)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, os.Remove(limits))
	_, err = oci.MountedShares(root, time.Minute)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Symlink(filepath.Join(dir, "limits"), limits))
	_, err = oci.MountedShares(root, time.Minute)
	require.ErrorContains(t, err, "is not a regular file", "a link to the host's")
	require.NoError(t, os.Remove(limits))
	require.NoError(t, unix.Mkfifo(limits, 0o600))
	_, err = oci.MountedShares(root, time.Minute)
	require.ErrorContains(t, err, "is not a regular file", "a pipe, which nobody writes to")
	require.NoError(t, os.RemoveAll(mounted))
	require.NoError(t, os.Symlink(dir, mounted))
	_, err = oci.MountedShares(root, time.Minute)
	require.ErrorIs(t, err, fs.ErrNotExist, "a link to a folder of the host's")
}

// A container has mounted a file system on the way that nobody serves: who restores its claim
// goes on.
func TestMountedSharesWaitForNobody(t *testing.T) {
	c := exec.Command("sh", "-ec", `mount --make-rprivate /
		exec 9<>/dev/fuse
		mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 x /usr/local
		echo ready
		exec /bin/sleep 1000`)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	require.NoError(t, c.Start(), "as root")
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	_, err = out.Read(make([]byte, 16))
	require.NoError(t, err)
	_, err = oci.MountedShares(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), "root"), 10*time.Millisecond)
	require.ErrorContains(t, err, "does not answer")
}
