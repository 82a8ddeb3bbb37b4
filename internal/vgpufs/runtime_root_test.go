//go:build root

package vgpufs_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
)

// containerRuntime is a process in a mount namespace of its own.
type containerRuntime struct {
	conn net.Conn
	in   io.Writer
	out  *bufio.Reader
}

// startRuntime starts a container runtime. propagation decides whether its mounts are seen here.
func startRuntime(t *testing.T, dir, propagation string) containerRuntime {
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command("unshare", "--mount", "--propagation", propagation, self)
	command.Env = append(os.Environ(), listenIn+"="+dir)
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { in.Close(); require.NoError(t, command.Wait()) })
	r := containerRuntime{in: in, out: bufio.NewReader(out)}
	require.Equal(t, "listening\n", r.line(t))
	r.conn, err = net.Dial("unix", filepath.Join(dir, "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { r.conn.Close() })
	return r
}

func (r containerRuntime) line(t *testing.T) string {
	line, err := r.out.ReadString('\n')
	require.NoError(t, err)
	return line
}

// sees returns whether the runtime has the claim mounted.
func (r containerRuntime) sees(t *testing.T) string {
	_, err := io.WriteString(r.in, "?\n")
	require.NoError(t, err)
	return r.line(t)
}

func (r containerRuntime) raw() syscall.Conn { return r.conn.(syscall.Conn) }

// The runtime sees the mount, and does not see it any more after the directory was removed in
// our own namespace.
func TestMountsInTheRuntimesNamespace(t *testing.T) {
	dir := t.TempDir()
	r := startRuntime(t, dir, "unchanged")
	// As in a pod, mounts propagate from the host only.
	require.NoError(t, unix.Mount("", dir, "", unix.MS_SLAVE, ""))
	claim := filepath.Join(dir, "claim")
	require.NoError(t, os.Mkdir(claim, 0o755))

	mounts := vgpufs.NewRuntime()
	defer mounts.Close()
	require.ErrorContains(t, mounts.Mount(claim), "not connected")
	mounts.Follow(r.raw())
	require.NoError(t, mounts.Mount(claim))
	require.NoError(t, mounts.Mount(claim))
	require.NoError(t, mounts.MountTurns(dir))
	require.NoError(t, mounts.MountTurns(dir))
	require.NoError(t, limiter.CreateTurns(dir, []string{gpu}, 1, true), "room is made in our own namespace")
	for range 2 { // as --retire does; rmdir also removes the runtime's mount
		require.NoError(t, mounts.MountTurns(dir))
		require.NoError(t, vgpufs.UnmountTurns(dir))
		require.NoError(t, os.RemoveAll(vgpufs.TurnsDir(dir)))
	}
	require.Equal(t, "mounted\n", r.sees(t))
	mounted, err := vgpufs.Mounted(claim)
	require.NoError(t, err)
	require.True(t, mounted)
	populate(t, claim)

	hidden := filepath.Join(dir, "hidden")
	require.NoError(t, os.Rename(claim, hidden), "the ledger renames directories with mounts in them")
	require.NoError(t, os.Mkdir(claim, 0o755))
	require.NoError(t, unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, claim, unix.RENAME_EXCHANGE))
	require.Equal(t, "mounted\n", r.sees(t))

	require.NoError(t, vgpufs.RemoveAll(claim))
	require.Equal(t, "not mounted\n", r.sees(t))
	require.NoDirExists(t, claim)
}

// Mount must fail if the agent can't read and write the limits.
func TestMountThatTheAgentDoesNotSeeIsAnError(t *testing.T) {
	dir := t.TempDir()
	r := startRuntime(t, dir, "private")
	claim := filepath.Join(dir, "claim")
	require.NoError(t, os.Mkdir(claim, 0o755))
	mounts := vgpufs.NewRuntime()
	defer mounts.Close()
	mounts.Follow(r.raw())
	require.ErrorContains(t, mounts.Mount(claim), "mountPropagation: HostToContainer")
	require.Equal(t, "mounted\n", r.sees(t))
	require.NoError(t, vgpufs.RemoveAll(claim))
	require.Equal(t, "not mounted\n", r.sees(t), "the ledger removes the directory")
}

// A runtime in the agent's own mount namespace needs no thread.
func TestMountsInOurOwnNamespace(t *testing.T) {
	dir := t.TempDir()
	claim := filepath.Join(dir, "claim")
	require.NoError(t, os.Mkdir(claim, 0o755))
	mounts := vgpufs.NewRuntime()
	defer mounts.Close()
	mounts.Follow(vgpufs.ConnTo(t, dir))
	require.NoError(t, mounts.Mount(claim))
	require.NoError(t, vgpufs.RemoveAll(claim))
}
