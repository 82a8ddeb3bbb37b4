//go:build root

package docker_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

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
