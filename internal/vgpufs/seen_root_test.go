//go:build root

package vgpufs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// gpuslice-runtime mounts in docker's mount namespace. With MountFlags=slave in docker's systemd
// unit, the host does not see mounts in that namespace.
func TestMountThatTheHostDoesNotSeeIsAnError(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	for _, propagation := range []string{"private", "unchanged"} {
		host := exec.Command("unshare", "--mount", "--propagation", propagation, "sh", "-c", "echo; cat")
		in, err := host.StdinPipe()
		require.NoError(t, err)
		out, err := host.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, host.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)

		claim := filepath.Join(dir, propagation)
		require.NoError(t, os.Mkdir(claim, 0o755))
		require.NoError(t, Mount(claim))
		err = seenIn(fmt.Sprintf("/proc/%d/root", host.Process.Pid), claim, Name)
		elsewhere := seenIn(t.TempDir(), claim, Name)
		require.NoError(t, RemoveAll(claim))
		require.NoError(t, in.Close())
		require.NoError(t, host.Wait())
		if propagation == "private" {
			require.ErrorContains(t, err, "remove MountFlags and PrivateMounts")
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, elsewhere, "the host has no such directory: this process is in a container")
	}
}
