//go:build root

// Package docker tests containers that no Kubernetes speaks for, end to end: Debian's
// dockerd and podman, containerd with the runtime wrapper, runc under all of them, the
// simulated driver as the GPU and the limiter inside. What a container may do is asked
// inside it, not read from its spec.
package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	mib = 1 << 20
	// contextMiB is what a CUDA context takes of an H200.
	contextMiB = 520
	// patience is for what only has to happen.
	patience = time.Minute
)

// workload is the path of a CUDA workload inside the images.
func workload(name string) string { return harness.WorkloadDir + "/" + name }

// newMachine makes a machine with GPUs, for the test's time.
func newMachine(t testing.TB, gpus ...string) *harness.Machine {
	m, err := harness.NewMachine(context.Background(), gpus...)
	t.Cleanup(func() {
		if m != nil {
			assert.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, m.WriteRuntimeConfig(""))
	return m
}

// docker is a docker daemon, and the machine with the GPUs that its containers share.
type docker struct {
	*harness.Dockerd
	m *harness.Machine
}

// newDocker starts a docker daemon on a machine, for the test's time.
func newDocker(t testing.TB, m *harness.Machine, o harness.DockerdOptions) docker {
	d, err := harness.NewDockerd(context.Background(), m, o)
	t.Cleanup(func() {
		if d == nil {
			return
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.LogTail(40))
		}
		assert.NoError(t, d.Close(context.Background()))
	})
	require.NoError(t, err)
	return docker{d, m}
}

// sliced are the arguments of docker run for a container with a share. There is no
// network, as the daemon has no bridge.
func sliced(args ...string) []string {
	return append([]string{"run", "--network", "none", "--runtime", "gpuslice"}, args...)
}

// share asks for memory and compute time.
func share(memoryMiB, cores int) []string {
	return []string{"-e", fmt.Sprintf("GPUSLICE_MEMORY=%dMiB", memoryMiB), "-e", fmt.Sprintf("GPUSLICE_CORES=%d", cores)}
}

// busyShare are the options of a container that wants all of a GPU, and is accounted for under the number of its share.
func busyShare(cores int) []string {
	return append(share(8000, cores), "-e", harness.BusyEnv(cores))
}

// run runs a command in a container of its own, and returns the key=value lines.
func (d docker) run(t testing.TB, options []string, command ...string) map[string]string {
	args := append(append([]string{"--rm"}, options...), harness.WorkloadImage)
	out, err := d.Docker(context.Background(), sliced(append(args, command...)...)...)
	require.NoError(t, err)
	return harness.KeyValues(out)
}

// start starts a container that stays, and returns its id.
func (d docker) start(t testing.TB, options []string, command ...string) string {
	args := append(append([]string{"--detach"}, options...), harness.WorkloadImage)
	out, err := d.Docker(context.Background(), sliced(append(args, command...)...)...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// exec runs a command in a container that is there.
func (d docker) exec(t testing.TB, id string, command ...string) map[string]string {
	out, err := d.Docker(context.Background(), append([]string{"exec", id}, command...)...)
	require.NoError(t, err)
	return harness.KeyValues(out)
}

// remove removes containers, running or not.
func (d docker) remove(t testing.TB, ids ...string) {
	_, err := d.Docker(context.Background(), append([]string{"rm", "--force"}, ids...)...)
	require.NoError(t, err)
}

// waitReady waits until a container's workload has printed ready=1.
func (d docker) waitReady(t testing.TB, id string) {
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		out, err := d.Docker(ctx, "logs", id)
		if err == nil && harness.KeyValues(out)["ready"] != "1" {
			err = fmt.Errorf("not ready: %s", out)
		}
		return err
	}))
}

// requireSees checks that a container's programs see as much memory as it was given, and
// no more, whichever library they ask.
func requireSees(t testing.TB, meminfo map[string]string, memoryMiB int) {
	t.Helper()
	for _, key := range []string{"device.0.total_bytes", "device.0.info_total_bytes", "nvml.0.total_bytes", "nvml.0.v2.total_bytes"} {
		require.Equal(t, strconv.Itoa(memoryMiB*mib), meminfo[key], key)
	}
	require.Equal(t, "1", meminfo["device_count"])
	require.Equal(t, "1", meminfo["nvml.device_count"])
}

// requireReserved checks the reservations of the first GPU.
func requireReserved(t testing.TB, m *harness.Machine, memoryMiB int64, containers int) {
	t.Helper()
	s, err := m.Status(context.Background())
	require.NoError(t, err)
	require.NotEmpty(t, s.GPUs)
	require.Equal(t, memoryMiB, s.GPUs[0].GrantedMemoryMiB)
	require.Equal(t, containers, s.GPUs[0].Containers)
}

// requireNothingLeft checks that no container's share is left anywhere.
func requireNothingLeft(t testing.TB, m *harness.Machine) {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(m.StateDir(), "containers"))
	if !errors.Is(err, fs.ErrNotExist) { // no claim was made yet
		require.NoError(t, err)
	}
	require.Empty(t, dirs, "directories")
	mounts, err := harness.ClaimMounts(m.StateDir())
	require.NoError(t, err)
	mounts = slices.DeleteFunc(mounts, func(point string) bool { // the operator's slices stay
		return strings.HasPrefix(point, filepath.Join(m.StateDir(), "slices")+"/")
	})
	require.Equal(t, []string{m.StateDir()}, mounts, "mounts")
	state, err := m.Simctl(context.Background(), "status", "-o", "json")
	require.NoError(t, err)
	require.Contains(t, state, `"memory_used_bytes":0,`)
}
