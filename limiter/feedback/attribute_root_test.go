//go:build root

package feedback

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

// begin starts a shell in a mount namespace of its own, where it goes through some steps and
// then becomes sleep.
func begin(t *testing.T, steps string) int {
	t.Helper()
	c := exec.Command("sh", "-ec", "mount --make-rprivate /\n"+steps+"\necho ready\nexec /bin/sleep 1000")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	require.NoError(t, c.Start(), "as root")
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	for name := ""; name != "sleep\n"; { // chroot comes before it
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), "comm"))
		require.NoError(t, err)
		name = string(text)
	}
	return c.Process.Pid
}

// Real processes: with the usage file, with a file system above it that never
// answers, and with another root.
func TestOwnersOfRealProcesses(t *testing.T) {
	state := t.TempDir()
	files := map[string]string{}
	for _, id := range []string{idA, idB} {
		files[id] = limiter.UsagePath(filepath.Join(state, id))
		claim := filepath.Join(state, id)
		require.NoError(t, os.Mkdir(claim, 0o755))
		require.NoError(t, vgpufs.Mount(claim))
		t.Cleanup(func() { require.NoError(t, vgpufs.RemoveAll(claim)) })
		require.NoError(t, os.WriteFile(files[id], nil, 0o666))
	}
	mount := vgpufstest.NewRoot + "mount --bind " + filepath.Dir(files[idB]) + " /mnt" + filepath.Dir(usagePath) + "; mount --bind " + files[idB] + " /mnt" + usagePath + "\n"
	const enter = "\necho ready\nexec chroot /mnt /bin/sleep 1000"
	with := begin(t, mount+enter)
	// It has no server: lookups in it hang.
	hangs := begin(t, mount+"exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 x /mnt"+filepath.Dir(usagePath)+enter)
	root := t.TempDir()
	changed := begin(t, mount+"mount --bind / "+root+"\necho ready\nexec chroot "+root+" /bin/sleep 1000")
	without := begin(t, "true")

	found := NewOwners("/proc").Find([]int{with, hangs, changed, without, os.Getpid()}, files)
	assert.Equal(t, map[int]string{with: idB, hangs: idB}, found, "one that has changed its root has no such mount there")
}
