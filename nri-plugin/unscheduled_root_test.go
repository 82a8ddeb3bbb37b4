//go:build root

package nriplugin_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

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
	}, 10*time.Second, 10*time.Millisecond, "no grant while the ledger is not reconciled")
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
