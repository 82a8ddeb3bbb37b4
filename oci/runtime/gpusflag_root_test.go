//go:build root

package ociruntime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// docker run --gpus all, and compose's reservations.devices, which docker writes in the same way: refused with the way
// out, or where the operator allows whole GPUs, the GPU is reserved. With a request it adds nothing.
func TestGPUsFlagOfDocker(t *testing.T) {
	for _, spec := range []string{"docker-24-gpus", "docker-25-gpus", "docker-25-compose", "docker-26-gpus", "docker-26-compose", "docker-28-gpus", "docker-28-compose"} {
		t.Run(spec, func(t *testing.T) { gpusFlag(t, spec) })
	}

	// compose's runtime: gpuslice without a reservation, and an image that sets the variable: no GPU, as always.
	b := newBench(t)
	require.NoError(t, b.make(b.bundle(t, "docker-20-nothing")))
	assert.Empty(t, b.claims(t))
}

func gpusFlag(t *testing.T, spec string) {
	bundleOf := func(t *testing.T, b *bench, env ...string) string {
		dir := b.bundle(t, spec)
		file := filepath.Join(dir, configName)
		bundle, err := OpenBundle(file)
		require.NoError(t, err)
		e := bundle.Spec.Process.Env
		e = slices.DeleteFunc(e, func(v string) bool {
			return strings.HasPrefix(v, "GPUSLICE_") || strings.HasPrefix(v, "NVIDIA_VISIBLE_DEVICES=")
		})
		bundle.Spec.Process.Env = append(e, env...)
		require.NoError(t, bundle.Save())
		require.NoError(t, os.Remove(beside(file, originalSuffix)))
		return dir
	}
	claimed := func(t *testing.T, b *bench) []grant.Share {
		snapshot, err := b.ledger.Snapshot(t.Context())
		require.NoError(t, err)
		require.Len(t, snapshot.Claims(), 1)
		return snapshot.Claims()[0].Shares
	}

	b := newBench(t)
	b.Config.Path = "/etc/gpuslice/runtime.yaml"
	err := b.make(bundleOf(t, b, "NVIDIA_VISIBLE_DEVICES=all"))
	for _, want := range []string{"docker's --gpus", "compose", "-e GPUSLICE_MEMORY=8GiB", "allowWholeGPUs: true in /etc/gpuslice/runtime.yaml"} {
		require.ErrorContains(t, err, want)
	}
	assert.Empty(t, b.claims(t))

	b = newBench(t)
	b.Config.AllowWholeGPUs = true
	require.NoError(t, b.make(bundleOf(t, b, "NVIDIA_VISIBLE_DEVICES=all")))
	assert.Equal(t, []grant.Share{{UUID: gpu0, MemoryMiB: 40960}}, claimed(t, b))

	b = newBench(t)
	require.NoError(t, b.make(bundleOf(t, b, "NVIDIA_VISIBLE_DEVICES=0", "GPUSLICE_MEMORY=4GiB", "GPUSLICE_CORES=20")))
	assert.Equal(t, []grant.Share{{UUID: gpu0, MemoryMiB: 4096, CorePercent: 20}}, claimed(t, b))
}
