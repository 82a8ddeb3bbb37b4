//go:build root

package nriplugin_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

// A container fills the state directory by writing past the end of its usage file: the
// next one is created all the same.
func TestStateDirFilledByATenant(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"), "as root")
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	f := newFixture(t, func(c *nriplugin.Config) {
		var err error
		c.Ledger, err = ledger.Open(dir)
		require.NoError(t, err)
		writesLimits(c)
	})
	first := newContainer("main")
	_, err := f.runtime.create(newPod("first", hami(gpuA, 1000, 10)), first)
	require.NoError(t, err)
	usage, err := os.OpenFile(limiter.UsagePath(f.ledger.Dir(first.Id)), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer usage.Close()
	for err == nil {
		_, err = usage.Write(make([]byte, 1<<16))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)

	_, err = f.runtime.create(newPod("second", hami(gpuA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
	info, err := usage.Stat()
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(2<<20))
}

// An agent that was killed while it wrote a container's limits again: the next one writes
// them as it starts.
func TestHalfWrittenLimitsAreFixed(t *testing.T) {
	f := newFixture(t, writesLimits)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", hami(gpuA, 80000, 10)), ctr)
	require.NoError(t, err)
	path := limiter.LimitsPath(f.ledger.Dir(ctr.Id))
	want, err := limiter.ReadLimits(path)
	require.NoError(t, err)
	f.stop()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{1}, 128) // the first record's sequence
	require.NoError(t, errors.Join(err, file.Close()))
	_, err = limiter.ReadLimits(path)
	require.ErrorIs(t, err, limiter.ErrHalfWritten)

	f.start()
	require.EventuallyWithT(t, func(c *assert.CollectT) { // limits are written after the plugin is ready
		got, err := limiter.ReadLimits(path)
		require.NoError(c, err)
		require.Equal(c, want.Devices, got.Devices)
	}, time.Minute, time.Millisecond)
}

// The state directory was lost, and a GPU has been divided differently since: a container's
// shares come from the runtime's record, whatever is mounted in it now. A container without
// such a record blocks the node; its replicas are not calculated again.
func TestLostLedgerOfReplicas(t *testing.T) {
	f := newFixture(t, shareUnscheduled, func(c *nriplugin.Config) {
		c.Populate = func(dir string, claim ledger.Claim) error { return oci.Populate(dir, claim, c.Settings()) }
	})
	pod, ctr := newPod("p", nil), withReplicas("main", gpuA+"::0,"+gpuA+"::1")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	record := ctr.Annotations[api.AnnotationShares]
	delete(ctr.Annotations, api.AnnotationShares)
	ctr.Pid = uint32(runWithForgedLimits(t))
	f.stop()
	require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
	gpus := map[string]grant.GPU{gpuA: {UUID: gpuA, MemoryMiB: 81920, CorePercent: 100, Replicas: 100}}
	f.config.GPUs = func() map[string]grant.GPU { return gpus }
	f.config.Unscheduled = nriplugin.UnscheduledDeny

	f.run()
	require.Eventually(t, func() bool {
		_, err := f.runtime.create(newPod("other", hami(gpuA, 1, 0)), newContainer("main"))
		return err != nil && strings.Contains(err.Error(), "until the ledger is reconciled")
	}, time.Minute, 10*time.Millisecond, "no grant while the ledger is not reconciled")
	f.stop()

	ctr.Annotations[api.AnnotationShares] = record
	f.start()
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(t, err)
	claims := snapshot.Claims()
	require.Len(t, claims, 1)
	require.Equal(t, ctr.Id, claims[0].ContainerID)
	require.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 16384, CorePercent: 20}}, claims[0].Shares)
}

// runWithForgedLimits runs a process with forged limits of 1 MiB mounted at the limits file's
// path, and returns its PID.
func runWithForgedLimits(t *testing.T) int {
	limits := filepath.Join(t.TempDir(), "limits")
	require.NoError(t, limiter.WriteLimits(limits, limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: gpuA, MemoryLimitBytes: 1 << 20, CorePercent: 1}}}))
	ready, wrote, err := os.Pipe()
	require.NoError(t, err)
	defer ready.Close()
	cmd := exec.Command("sh", "-ec", vgpufstest.NewRoot+`cp "$1" /mnt/.gpuslice/limits; echo >&3; exec chroot /mnt sleep 60`, "sh", limits)
	cmd.ExtraFiles = []*os.File{wrote}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.NoError(t, wrote.Close())
	_, err = ready.Read(make([]byte, 1))
	require.NoError(t, err)
	return cmd.Process.Pid
}
