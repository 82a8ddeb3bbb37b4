//go:build root

package vgpufs

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A thread that enters the runtime's mount namespace is not the main one, which /proc shows as the process.
func TestThreadIsNotTheMainOne(t *testing.T) {
	for range 1000 {
		entered := newThread()
		require.NoError(t, entered.do(func() error {
			if unix.Gettid() == os.Getpid() {
				return unix.EBUSY
			}
			return nil
		}))
		entered.end()
	}
}

// ConnTo is a connection to this process, by a socket in dir.
func ConnTo(t *testing.T, dir string) *net.UnixConn {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	conn, err := net.Dial("unix", filepath.Join(dir, "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

// Follow compares with the namespace of its own thread, and not with that of the main one.
func TestFollowInAThreadWithAnotherNamespace(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	conn := ConnTo(t, dir)
	claim := filepath.Join(dir, "claim")
	require.NoError(t, os.Mkdir(claim, 0o755))

	mounts, caller := NewRuntime(), newThread()
	defer mounts.Close()
	defer caller.end()
	require.NoError(t, caller.do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", dir, "", unix.MS_SLAVE, ""); err != nil {
			return err
		}
		mounts.Follow(conn)
		return mounts.Mount(claim)
	}))
	mounted, err := Mounted(claim)
	require.NoError(t, err)
	require.True(t, mounted, "where the runtime is")
	require.NoError(t, RemoveAll(claim))
}
