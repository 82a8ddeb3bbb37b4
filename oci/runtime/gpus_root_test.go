//go:build root

package ociruntime

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// The output of the real `gpuslice gpus`, and its error without a driver.
func TestQueryDriver(t *testing.T) {
	m := newMachine(t, "")
	config, err := LoadConfig(m.path("runtime.yaml"))
	require.NoError(t, err)
	t.Setenv("SIMGPU_STATE", m.path("sim/state"))
	gpus, err := NewInventory(config, m.artefact("bin", "gpuslice-runtime")).GPUs(context.Background())
	require.NoError(t, err)
	require.Equal(t, grant.GPU{UUID: h200, MemoryMiB: 143771, CorePercent: 100, Replicas: 10}, gpus.Capacity[h200])
	require.Equal(t, map[string]string{h200: "0", t4: "1"}, gpus.Indices)
	require.EqualValues(t, 105, gpus.ContextMiB[t4])

	require.NoError(t, os.Remove(m.path("run/gpus.json")))
	config.NVMLLibrary = "/no/such/libnvidia-ml.so.1"
	_, err = NewInventory(config, m.artefact("bin", "gpuslice-runtime")).GPUs(context.Background())
	require.ErrorContains(t, err, "nvmlInit")
	t.Setenv("PATH", "")
	_, err = NewInventory(config, m.path("nowhere/gpuslice-runtime")).GPUs(context.Background())
	require.ErrorContains(t, err, "install gpuslice in the directory of gpuslice-runtime, or run gpuslice-agent")
}

// A new container gets no cordoned GPU, and the error lists it.
func TestCordonedGPU(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.ledger.Cordon(t.Context(), gpu0))
	err := b.make(b.bundle(t, "docker-20"))
	require.ErrorContains(t, err, "cordoned: GPU 0 ("+gpu0+") (gpuslice uncordon)")
	require.Empty(t, b.claims(t))

	require.NoError(t, b.ledger.Uncordon(t.Context(), gpu0))
	require.NoError(t, b.make(b.bundle(t, "docker-20")))
	require.Len(t, b.claims(t), 1)
}
