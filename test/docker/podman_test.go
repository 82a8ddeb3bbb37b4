//go:build root

package docker_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// podman is podman with one of the two ways to gpuslice.
type podman struct {
	*harness.Podman
	m *harness.Machine
	// runtime is its OCI runtime.
	runtime string
}

// start starts a container that stays, and returns its id.
func (p podman) start(t testing.TB, options []string, command ...string) string {
	out, err := p.Run(context.Background(), p.runtime, append([]string{"--detach"}, options...), command...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// podman makes the same containers by --runtime and by hooks.d.
func TestPodman(t *testing.T) {
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	for _, way := range []struct {
		name, runtime string
		hooks         bool
	}{{"by its runtime", wrapper, false}, {"by hooks", "/usr/sbin/runc", true}, {"by both", wrapper, true}} {
		t.Run(way.name, func(t *testing.T) {
			m := newMachine(t, "H200")
			engine, err := harness.NewPodman(m)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, engine.Close(context.Background())) })
			if way.hooks {
				require.NoError(t, engine.InstallHooks(m))
			}
			testPodman(t, podman{engine, m, way.runtime})
		})
	}
}

func testPodman(t *testing.T, p podman) {
	ctx := context.Background()
	id := p.start(t, append([]string{"--name", "train"}, share(8192, 30)...), "/bin/sleep", "1000")
	requireReserved(t, p.m, 8192, 1)
	s, err := p.m.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, "train", s.Containers[0].Container, "podman's name")
	out, err := p.Command(ctx, p.runtime, "exec", id, workload("meminfo"))
	require.NoError(t, err)
	requireSees(t, harness.KeyValues(out), 8192)
	out, err = p.Command(ctx, p.runtime, "exec", id, workload("alloc"), "--chunk-mib=2")
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa((8192-contextMiB)*mib), harness.KeyValues(out)["allocated_bytes"])

	// podman itself reports what can't be granted.
	_, err = p.Run(ctx, p.runtime, share(140000, 10), "/bin/true")
	require.Error(t, err)
	require.ErrorContains(t, err, "not enough free GPU capacity")
	requireReserved(t, p.m, 8192, 1)

	// A second one shares the GPU, hardened.
	out, err = p.Run(ctx, p.runtime, append([]string{"--rm", "--read-only", "--cap-drop", "ALL", "--user", "1000"}, share(2000, 10)...), workload("meminfo"))
	require.NoError(t, err)
	requireSees(t, harness.KeyValues(out), 2000)

	// Without a request there is no GPU, for any variables.
	_, err = p.Run(ctx, p.runtime, []string{"--rm", "-e", "NVIDIA_VISIBLE_DEVICES=all"}, workload("meminfo"))
	require.ErrorContains(t, err, "exit status 4")

	_, err = p.Command(ctx, p.runtime, "restart", "--time", "0", id)
	require.NoError(t, err)
	out, err = p.Command(ctx, p.runtime, "exec", id, workload("meminfo"))
	require.NoError(t, err)
	requireSees(t, harness.KeyValues(out), 8192)

	_, err = p.Command(ctx, p.runtime, "kill", "--signal", "KILL", id)
	require.NoError(t, err)
	_, err = p.Command(ctx, p.runtime, "wait", id)
	require.NoError(t, err)
	_, err = p.Command(ctx, p.runtime, "rm", "--force", id)
	require.NoError(t, err)
	requireNothingLeft(t, p.m)

	// Two that both want all of a GPU divide its time by their shares. There is no agent.
	var ids []string
	for _, cores := range []int{30, 70} {
		ids = append(ids, p.start(t, busyShare(cores), harness.Busy...))
	}
	require.NoError(t, p.m.HoldShares(ctx, 0, map[int]int{30: 30, 70: 70}, 5))
	_, err = p.Command(ctx, p.runtime, append([]string{"rm", "--force", "--time", "0"}, ids...)...)
	require.NoError(t, err)
	requireNothingLeft(t, p.m)
}

// podman run --device gpuslice.io/slice=NAME, with plain runc.
func TestPodmanSlices(t *testing.T) {
	ctx := context.Background()
	m := newMachine(t, "H200")
	require.NoError(t, m.WriteRuntimeConfig("slices:\n  small: {memory: 4GiB, cores: 10}\n  large: {memory: 130GiB, cores: 50}\n"))
	require.NoError(t, m.GenerateSlices(ctx))
	p, err := harness.NewPodman(m)
	require.NoError(t, err)
	p.CDIDir = m.CDIDir()
	t.Cleanup(func() { assert.NoError(t, p.Close(ctx)) })
	run := func(options []string, command ...string) (map[string]string, error) {
		out, err := p.Run(ctx, "/usr/sbin/runc", append([]string{"--rm"}, options...), command...)
		return harness.KeyValues(out), err
	}
	small := []string{"--device", "gpuslice.io/slice=small"}
	for range 2 { // it can be had again
		v, err := run(small, workload("meminfo"))
		require.NoError(t, err)
		requireSees(t, v, 4096)
		requireNothingLeft(t, m)
	}
	v, err := run(small, workload("alloc"))
	require.NoError(t, err)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
	_, err = run([]string{"--device", "gpuslice.io/slice=huge"}, workload("meminfo"))
	require.ErrorContains(t, err, "gpuslice.io/slice=huge")

	// One at a time, and no more than the GPU has.
	done := make(chan error)
	go func() {
		_, err := run(small, "/bin/sh", "-c", "until test -e /stop; do sleep 0.1; done")
		done <- err
	}()
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		s, err := m.Status(ctx)
		if err == nil && len(s.Containers) == 0 {
			err = context.DeadlineExceeded
		}
		return err
	}))
	_, err = run(small, workload("meminfo"))
	require.ErrorContains(t, err, "slice small: container")
	require.NoError(t, os.WriteFile(filepath.Join(p.Rootfs, "stop"), nil, 0o600))
	require.NoError(t, <-done)
	requireNothingLeft(t, m)
}
