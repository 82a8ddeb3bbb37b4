//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// total is what a container sees of its GPU's memory.
func total(t testing.TB, n *harness.Node, id string) string {
	t.Helper()
	return exec(t, n, id, workload("meminfo"))["device.0.total_bytes"]
}

// The directory of the limiter's files is a mount: root of the container can't rename it,
// remove it or put a file into it.
func TestLimitersDirectoryCannotBeReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	pod, id := run(t, n, harness.Pod{Name: "attacker", Annotations: granted(uuid, 1000, 10)}, harness.Container{Mounts: forged(t, uuid)})
	for command, says := range map[string]string{
		workload("attack") + " move /forged/limits true":                          "Device or resource busy",
		"mv /.gpuslice/limits /.gpuslice/old":                                     "Read-only file system",
		"cat /forged/limits >/.gpuslice/limits":                                   "Read-only file system",
		"cat /forged/limits >/.gpuslice/new":                                      "Read-only file system",
		"mv /.gpuslice/usage /.gpuslice/old":                                      "Read-only file system",
		"mv /.gpuslice/libvgpu.so /.gpuslice/old":                                 "Read-only file system",
		"rm -r /.gpuslice":                                                        "Read-only file system",
		"umount /.gpuslice":                                                       "Operation not permitted",
		"mount -o remount,rw,bind /.gpuslice && cat /forged/limits >/.gpuslice/x": "permission denied",
	} {
		stdout, stderr, code, err := n.Exec(context.Background(), id, "/bin/busybox", "sh", "-c", command)
		require.NoError(t, err)
		require.NotZero(t, code, command)
		require.Contains(t, strings.ToLower(stdout+stderr), strings.ToLower(says), command)
	}
	require.Equal(t, fmt.Sprint(1000*mib), total(t, n, id))
	require.NoError(t, pod.Remove(context.Background()))
	left, err := harness.ClaimMounts(n.StateDir())
	require.NoError(t, err)
	require.Equal(t, []string{n.StateDir()}, left)
}

// A container that writes past the end of its usage file fills its own file system: the state
// directory has room, neighbours' first processes run, and new grants are answered, also by an
// agent that was started again.
func TestGrownUsageFillsNoOtherFileSystem(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	used := func() uint64 {
		var fs unix.Statfs_t
		require.NoError(t, unix.Statfs(n.StateDir(), &fs))
		return (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	}
	_, neighbour := run(t, n, harness.Pod{Name: "neighbour", Annotations: granted(uuid, 1000, 10)}, harness.Container{})
	before := used()
	attacker, id := attack(t, n, harness.Pod{Name: "attacker", Annotations: granted(uuid, 1000, 10)}, harness.Container{}, "grow", "/.gpuslice/usage")
	for restarted := range 2 {
		require.LessOrEqual(t, used(), before+64<<10, "the state directory holds the claim's record")
		require.Equal(t, fmt.Sprint(1000*mib), total(t, n, neighbour))
		_, next := run(t, n, harness.Pod{Name: fmt.Sprint("next-", restarted), Annotations: granted(uuid, 1000, 10)}, harness.Container{})
		require.Equal(t, fmt.Sprint(1000*mib), total(t, n, next))
		require.NoError(t, n.Agent.Stop(patience))
		require.NoError(t, n.StartAgent(ctx))
	}
	require.NoError(t, attacker.Remove(ctx))
	require.NoDirExists(t, filepath.Join(n.StateDir(), "containers", id))
}

// After the ledger was lost a container's shares come from the runtime's record of it, and
// not from a file that it has put in the place of its limits.
func TestLostLedgerBelievesNoForgedFile(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--unscheduled-policy=share", "--device-split-count=2"}})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	small := filepath.Join(t.TempDir(), "limits")
	require.NoError(t, limiter.WriteLimits(small, limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: uuid, MemoryLimitBytes: 1 * mib, CorePercent: 1}}}))
	replica := map[string]string{api.AnnotationReplicas: uuid + "::0"}
	_, id := run(t, n, harness.Pod{Name: "attacker"}, harness.Container{
		Annotations: replica, Mounts: []*cri.Mount{{HostPath: filepath.Dir(small), ContainerPath: "/forged", Readonly: true}},
		Command: []string{"/bin/sh", "-c", workload("attack") + " move /forged/limits true; sleep 1000000"},
	})
	status, err := n.Status(ctx)
	require.NoError(t, err)
	share := status.GPUs[0].GrantedMemoryMiB
	require.Greater(t, share, int64(10000))
	require.NoError(t, n.Agent.Stop(patience))
	require.NoError(t, harness.LoseClaims(n.StateDir()))
	require.NoError(t, n.StartAgent(ctx))
	status, err = n.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, share, status.GPUs[0].GrantedMemoryMiB, "the claim of %s is what it was created with", id)
	s, err := n.RunPod(ctx, harness.Pod{Name: "second", Annotations: granted(uuid, int(status.GPUs[0].MemoryMiB-share)+1000, 10)})
	require.NoError(t, err)
	_, err = s.Start(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, uuid, "the GPU is not granted twice")
}

// An operator's mistake, as in a copy of a backup: the limits files of two claims are
// exchanged. Each container gets its own limits again.
func TestExchangedLimitsFilesAreWrittenAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	ids, files := [2]string{}, [2][]byte{}
	path := func(i int) string {
		return limiter.LimitsPath(filepath.Join(n.StateDir(), "containers", ids[i]))
	}
	for i, memory := range []int{1000, 20000} {
		_, ids[i] = run(t, n, harness.Pod{Name: fmt.Sprint("p", memory), Annotations: granted(uuid, memory, 10)}, harness.Container{})
		var err error
		files[i], err = os.ReadFile(path(i))
		require.NoError(t, err)
	}
	require.NoError(t, n.Agent.Stop(patience))
	for i := range ids {
		require.NoError(t, os.Chmod(path(i), 0o644))
		require.NoError(t, os.WriteFile(path(i), files[1-i], 0o444))
	}
	require.Equal(t, fmt.Sprint(20000*mib), total(t, n, ids[0]), "nothing on the host has seen it yet")
	require.NoError(t, n.StartAgent(ctx))
	until(t, func(context.Context) error {
		for i, want := range []int{1000, 20000} {
			if got := total(t, n, ids[i]); got != fmt.Sprint(want*mib) {
				return fmt.Errorf("container %d sees %s bytes", i, got)
			}
		}
		return nil
	})
	require.Contains(t, n.Agent.LogTail(1000), limiter.ErrForeign.Error())
}

// An image makes the limiter's directory a link: into a volume of the pod that is mounted later
// and hides the limits, or to another directory, for links can be replaced. The container
// is refused.
func TestImageWithALinkIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	volume := forged(t, uuid)[0].HostPath
	for name, c := range map[string]struct {
		target string
		mounts []*cri.Mount
	}{
		"volume":    {"/data/deep/er", []*cri.Mount{{HostPath: volume, ContainerPath: "/data/deep/er"}}},
		"below":     {"/data/deep/er/a/b", []*cri.Mount{{HostPath: volume, ContainerPath: "/data/deep/er/a/b"}}},
		"directory": {"/data/deep/er", nil},
	} {
		root, err := harness.GlibcRoot()
		require.NoError(t, err)
		root.Dirs = append(root.Dirs, "usr", "usr/local", "data", "data/deep", "data/deep/er", "data/deep/er/a", "data/deep/er/a/b")
		root.Links[".gpuslice"] = c.target
		image, archive := "gpuslice.test/linked-"+name+":1", filepath.Join(t.TempDir(), "linked.tar")
		require.NoError(t, harness.WriteImage(archive, image, root))
		require.NoError(t, n.Import(ctx, archive))
		s, err := n.RunPod(ctx, harness.Pod{Name: name, Annotations: granted(uuid, 1000, 10)})
		require.NoError(t, err)
		_, err = s.Start(ctx, harness.Container{Name: "main", Image: image, Mounts: c.mounts})
		require.ErrorContains(t, err, "gpuslice: container", name)
		require.ErrorContains(t, err, "/.gpuslice", name)
		require.NoError(t, s.Remove(ctx))
	}
	status, err := n.Status(ctx)
	require.NoError(t, err)
	require.Zero(t, status.GPUs[0].GrantedMemoryMiB, "a refused container holds nothing")
	left, err := harness.ClaimMounts(n.StateDir())
	require.NoError(t, err)
	require.Equal(t, []string{n.StateDir()}, left)
}
