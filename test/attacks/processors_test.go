//go:build attacks

package attacks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	// defaultShares is a control group's weight of the processors, as cpu.shares of cgroup v1 and, of cgroup v2, as cpu.weight.
	defaultShares, defaultWeight = 1024, 100
	// precedence is how much more than the machine's other work the test and its node weigh.
	precedence = 50
)

// cpuGroup is the directory of a control group below the root.
func cpuGroup(name string) string {
	if v1 := "/sys/fs/cgroup/cpu"; exists(v1) {
		return filepath.Join(v1, name)
	}
	return filepath.Join("/sys/fs/cgroup", name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// weigh sets a control group's weight.
func weigh(t *testing.T, group string, shares int) {
	t.Helper()
	file, value := filepath.Join(cpuGroup(group), "cpu.shares"), min(shares, 256*defaultShares)
	if !exists(file) {
		file, value = filepath.Join(cpuGroup(group), "cpu.weight"), max(1, min(shares*defaultWeight/defaultShares, 100*defaultWeight))
	}
	require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(value)), 0))
}

// reserveProcessors has the test, and the programs of the nodes that it starts from now on, weigh more than the machine's other
// work, which is not what a test measures.
func reserveProcessors(t *testing.T) {
	if children := cpuGroup("cgroup.subtree_control"); exists(children) { // version 2
		require.NoError(t, os.WriteFile(children, []byte("+cpu"), 0))
	}
	group := "gpuslice-attacks-" + strconv.Itoa(os.Getpid())
	require.NoError(t, os.Mkdir(cpuGroup(group), 0o755))
	move := func(to string) error {
		return os.WriteFile(filepath.Join(cpuGroup(to), "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	t.Cleanup(func() {
		assert.NoError(t, move(""))
		assert.NoError(t, os.Remove(cpuGroup(group)))
	})
	weigh(t, group, precedence*defaultShares)
	require.NoError(t, move(group))
}

// weighPods gives all pods of a node together the weight that the kubelet gives them beside the programs of the node.
func weighPods(t *testing.T, n *harness.Node) {
	weigh(t, filepath.Base(n.Dir), precedence*defaultShares*runtime.NumCPU())
}

// weighContainer gives a container a weight beside other pods.
func weighContainer(t *testing.T, n *harness.Node, id string, shares int) {
	weigh(t, filepath.Join(filepath.Base(n.Dir), id), shares)
}

// reserveDisk has the nodes that are started from now on in memory: how long the machine's disk takes, which other programs
// write to, is not what a test measures.
func reserveDisk(t *testing.T) {
	dir, err := os.MkdirTemp("", "gm") // short, as paths of sockets have to be
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.Remove(dir)) })
	require.NoError(t, harness.MountTmpfs(dir, 4096))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	t.Setenv("TMPDIR", dir)
}
