//go:build root

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/harness"
)

// storageFault is something that is wrong with the state directory.
type storageFault struct {
	name string
	// arm brings it about, while the agent runs or not, and returns what ends it.
	arm func(t *testing.T, n *harness.Node, running bool) (heal func())
	// reason must be in the message of a refused container.
	reason string
	// givesBack: a container that ends is released at once, and not only afterwards.
	givesBack bool
}

var storageFaults = []storageFault{
	{"not a byte free", fillBytes, "no space left on device", true},
	{"no inode free", fillInodes, "no space left on device", true},
	{"read-only", makeReadOnly, "read-only file system", false},
}

// remount changes the options of the state directory's tmpfs.
func remount(t *testing.T, n *harness.Node, flags uintptr, options string) {
	require.NoError(t, unix.Mount("", n.StateDir(), "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flags, options))
}

// roomy is a state directory that lacks nothing.
const roomy = "size=256m,nr_inodes=100000"

// fillBytes makes the directory small and fills it to the last byte.
func fillBytes(t *testing.T, n *harness.Node, _ bool) func() {
	remount(t, n, 0, "size=2m")
	path := filepath.Join(n.StateDir(), "filler")
	filler, err := os.Create(path)
	require.NoError(t, err)
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(make([]byte, os.Getpagesize()))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return func() {
		require.NoError(t, os.Remove(path))
		remount(t, n, 0, roomy)
	}
}

// fillInodes takes every inode.
func fillInodes(t *testing.T, n *harness.Node, _ bool) func() {
	remount(t, n, 0, "nr_inodes=200")
	dir := filepath.Join(n.StateDir(), "filler")
	err := os.Mkdir(dir, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return func() {
		require.NoError(t, os.RemoveAll(dir))
		remount(t, n, 0, roomy)
	}
}

// makeReadOnly makes the file system read-only or, where the kernel refuses that for
// files that the agent has open, the directory under its path.
func makeReadOnly(t *testing.T, n *harness.Node, running bool) func() {
	if !running {
		remount(t, n, unix.MS_RDONLY, "")
		return func() { remount(t, n, 0, "") }
	}
	dir := n.StateDir()
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	return func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }
}

// storagePatience is how long a thing may take that only has to happen.
const storagePatience = time.Minute

// requireTrueLedger waits until the ledger is what containerd runs, and checks that
// there are no other directories.
func requireTrueLedger(t *testing.T, n *harness.Node) {
	ctx := context.Background()
	held, err := n.Held(ctx)
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, storagePatience, func(ctx context.Context) error {
		reserved, err := n.Reserved(ctx)
		if err != nil {
			return err
		}
		dirs, err := n.StateDirs()
		if err == nil && (fmt.Sprint(reserved) != fmt.Sprint(held) || len(dirs) != len(held)) {
			err = fmt.Errorf("containers hold %v, reserved are %v, directories are %v", held, reserved, dirs)
		}
		return err
	}))
}

// driverMiB is more than a driver keeps for itself of a GPU that is granted whole.
const driverMiB = 1000

// requireWorks checks that grants and containers without one do, with almost all that
// is free, and removes the pods again.
func requireWorks(t *testing.T, n *harness.Node, name string) {
	ctx := context.Background()
	s, err := n.Status(ctx)
	require.NoError(t, err)
	free := s.GPUs[0].MemoryMiB - s.GPUs[0].GrantedMemoryMiB - driverMiB
	granted := run(t, n, harness.Pod{Name: name + "-granted", Annotations: hami(s.GPUs[0].UUID, int(free), 0)})
	v := exec(t, n, start(t, granted, harness.Container{Name: "main"}), workload("meminfo"))
	require.Equal(t, free*mib, number(t, v["device.0.total_bytes"]))
	requireUngranted(t, n, name)
	require.NoError(t, granted.Remove(ctx))
}

// requireUngranted checks that a container without a grant is created, and has no GPU.
func requireUngranted(t *testing.T, n *harness.Node, name string) {
	ctx := context.Background()
	pod := run(t, n, harness.Pod{Name: name + "-ungranted"})
	_, _, code, err := n.Exec(ctx, start(t, pod, harness.Container{Name: "main", Image: harness.GreedyImage}), workload("meminfo"))
	require.NoError(t, err)
	require.Equal(t, 4, code, "no driver")
	require.NoError(t, pod.Remove(ctx))
}

// The state directory is full, has no inode left, or can't be written, while containers
// come and go: grants are refused with the reason, nothing else is, and what went
// meanwhile is given back as soon as it can be.
func TestStateDirThatTakesNothing(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	for i, f := range storageFaults {
		t.Run(f.name, func(t *testing.T) {
			name := func(what string) string { return fmt.Sprintf("%s%d", what, i) }
			stays := run(t, n, harness.Pod{Name: name("stays"), Annotations: hami(uuid, 2000, 10)})
			staysID := start(t, stays, harness.Container{Name: "main"})
			exec(t, n, staysID, workload("meminfo"))
			goes := run(t, n, harness.Pod{Name: name("goes"), Annotations: hami(uuid, 90000, 50)})
			start(t, goes, harness.Container{Name: "main"})

			heal := f.arm(t, n, true)
			refused := run(t, n, harness.Pod{Name: name("refused"), Annotations: hami(uuid, 1000, 0)})
			for attempt := range uint32(3) {
				_, err := refused.Create(ctx, harness.Container{Name: "main", Attempt: attempt, Image: harness.GreedyImage})
				require.ErrorContains(t, err, f.reason)
				require.ErrorContains(t, err, refused.Pod.Name)
				require.ErrorContains(t, err, n.StateDir())
			}
			requireUngranted(t, n, name("during"))
			v := exec(t, n, staysID, workload("meminfo"))
			require.Equal(t, int64(2000*mib), number(t, v["device.0.total_bytes"]), "what runs, runs on")
			require.NoError(t, goes.Remove(ctx))
			require.NoError(t, n.Health(ctx, "/healthz"))
			require.NoError(t, n.WaitConnected(ctx))
			if f.givesBack {
				requireTrueLedger(t, n)
			} else {
				reserved, err := n.Reserved(ctx)
				require.NoError(t, err)
				require.Len(t, reserved, 2, "what can't be released still counts")
			}
			heal()

			requireTrueLedger(t, n)
			start(t, refused, harness.Container{Name: "main", Attempt: 3})
			requireWorks(t, n, name("after"))
			require.NoError(t, refused.Remove(ctx))
			require.NoError(t, stays.Remove(ctx))
			requireTrueLedger(t, n)
		})
	}
	requireNothingLeft(t, n)
}

// An agent that starts on such a directory connects or, if it can't work at all, reports the reason and ends.
// It has the right state when the directory is writable again.
func TestAgentStartsOnAStateDirThatTakesNothing(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	for i, f := range storageFaults {
		t.Run(f.name, func(t *testing.T) {
			name := func(what string) string { return fmt.Sprintf("%s%d", what, i) }
			stays := run(t, n, harness.Pod{Name: name("stays"), Annotations: hami(uuid, 2000, 10)})
			staysID := start(t, stays, harness.Container{Name: "main"})
			goes := run(t, n, harness.Pod{Name: name("goes"), Annotations: hami(uuid, 90000, 50)})
			start(t, goes, harness.Container{Name: "main"})
			n.Agent.Kill()
			require.NoError(t, goes.Remove(ctx))

			heal := f.arm(t, n, false)
			if f.givesBack {
				require.NoError(t, n.StartAgent(ctx))
				requireTrueLedger(t, n)
				requireUngranted(t, n, name("during"))
				heal()
			} else {
				require.NoError(t, n.LaunchAgent())
				select {
				case <-n.Agent.Exited():
				case <-time.After(storagePatience):
					require.Fail(t, "the agent runs")
				}
				log := n.Agent.LogTail(1)
				for _, want := range []string{"--state-dir", n.StateDir(), f.reason} {
					require.Contains(t, log, want)
				}
				orphan := run(t, n, harness.Pod{Name: name("orphan"), Annotations: hami(uuid, 1000, 0)})
				requireNoUnlimitedGPU(t, n, orphan, harness.Container{Name: "main", Image: harness.GreedyImage})
				require.NoError(t, orphan.Remove(ctx))
				heal()
				require.NoError(t, n.StartAgent(ctx))
			}
			requireTrueLedger(t, n)
			v := exec(t, n, staysID, workload("meminfo"))
			require.Equal(t, int64(2000*mib), number(t, v["device.0.total_bytes"]))
			requireWorks(t, n, name("after"))
			require.NoError(t, stays.Remove(ctx))
		})
	}
	requireNothingLeft(t, n)
}

// With a full state directory, running containers keep working: their files are on file systems
// of their own.
func TestFullStateDirectoryDeniesNoRunningContainer(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	pod := run(t, n, harness.Pod{Name: "p", Annotations: hami(gpu(t, n, 0), 2000, 10)})
	id := start(t, pod, harness.Container{Name: "main"})
	heal := fillBytes(t, n, true)
	v := exec(t, n, id, workload("meminfo"))
	require.Equal(t, int64(2000*mib), number(t, v["device.0.total_bytes"]))
	heal()
	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, n)
}

// A container that writes past the end of its usage file fills only its own file system, and is
// reported. Other containers are not delayed.
func TestTenantFillsItsOwnFileSystem(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	remount(t, n, 0, "size=4m")
	uuid := gpu(t, n, 0)
	quiet := run(t, n, harness.Pod{Name: "quiet", Annotations: hami(uuid, 2000, 10)})
	quietID := start(t, quiet, harness.Container{Name: "main"})
	greedy := run(t, n, harness.Pod{Name: "greedy", Annotations: hami(uuid, 1000, 10)})
	id := start(t, greedy, harness.Container{Name: "main"})
	_, stderr, code, err := n.Exec(ctx, id, "/bin/sh", "-c", "cat /dev/zero >> /.gpuslice/usage")
	require.NoError(t, err)
	require.NotZero(t, code)
	require.Contains(t, stderr, "No space left")
	require.Equal(t, int64(2000*mib), number(t, exec(t, n, quietID, workload("meminfo"))["device.0.total_bytes"]))
	requireWorks(t, n, "next")
	require.NoError(t, harness.Until(ctx, storagePatience, func(context.Context) error {
		for line := range strings.Lines(n.Agent.LogTail(100)) {
			if strings.Contains(line, "violation found") && strings.Contains(line, "damaged-usage-file") && strings.Contains(line, "default/greedy") {
				return nil
			}
		}
		return errors.New("the audit reports no violation")
	}))
	require.NoError(t, n.RemoveAllPods(ctx))
	requireNothingLeft(t, n)
}

// The directory that the library is in may be read-only once it is there.
func TestReadOnlyLibraryDir(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	dir := filepath.Join(n.Dir, "lib")
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	require.NoError(t, n.RestartAgent(context.Background()))
	requireWorks(t, n, "p")
}
