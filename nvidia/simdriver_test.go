package nvidia

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// simulated makes GPUs for the real go-nvml on the simulated driver's libnvidia-ml.so.1.
func simulated(t *testing.T, gpus ...string) (library string, simctl func(args ...string)) {
	t.Helper()
	dir, err := filepath.Abs("../build/sim")
	require.NoError(t, err)
	library = filepath.Join(dir, "libnvidia-ml.so.1")
	if _, err := os.Stat(library); err != nil {
		t.Fatal("the simulated driver isn't built: run `make build` first")
	}
	t.Setenv("SIMGPU_STATE", filepath.Join(t.TempDir(), "state"))
	simctl = func(args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(dir, "simctl"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	args := []string{"init"}
	for _, gpu := range gpus {
		args = append(args, "--gpu", gpu)
	}
	simctl(args...)
	return library, simctl
}

func TestDiscoverSimulatedDriver(t *testing.T) {
	library, _ := simulated(t, "H200", "T4")

	node, err := Discover(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Empty(t, node.Faults)
	require.Len(t, node.GPUs, 2)
	assert.NotEmpty(t, node.DriverVersion)
	assert.Regexp(t, `^\d+\.\d+$`, node.CUDAVersion)

	h200, t4 := node.GPUs[0], node.GPUs[1]
	assert.Equal(t, int64(143771), h200.MemoryMiB)
	assert.Equal(t, "9.0", h200.ComputeCapability)
	assert.Equal(t, "7.5", t4.ComputeCapability)
	assert.True(t, h200.MIGCapable)
	assert.False(t, t4.MIGCapable)
	for i, gpu := range node.GPUs {
		assert.Equal(t, i, gpu.Index)
		assert.Regexp(t, `^GPU-[0-9a-f-]{36}$`, gpu.UUID)
		assert.NotEmpty(t, gpu.PCIBusID)
		assert.GreaterOrEqual(t, gpu.NUMANode, NUMAUnknown)
	}
	assert.NotEqual(t, h200.UUID, t4.UUID)
}

func TestDiscoverWithoutLibrary(t *testing.T) {
	_, err := Discover(nvml.New(nvml.WithLibraryPath("/none/libnvidia-ml.so.1")))
	require.ErrorIs(t, err, nvml.ERROR_LIBRARY_NOT_FOUND)
	assert.ErrorContains(t, err, "install NVIDIA's driver")
}

// Health by a library that a process really has loaded: XIDs wake Run up, and GPUs
// are lost, removed, and come back.
func TestHealthOnTheSimulatedDriver(t *testing.T) {
	const first = "GPU-00000001-5151-4000-8000-000000000001"
	library, simctl := simulated(t, "T4", "T4:pci_switch=0")
	c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{
		Interval: 20 * time.Millisecond, Events: true, Topology: true, Settle: time.Millisecond,
	})
	changed := c.Changed()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, c.Run(ctx)) })
	defer wg.Wait()
	defer stop()
	until := func(healthy bool, reason string, gpus int) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			h, known := c.Health(first)
			if known && h.Healthy == healthy && strings.Contains(h.Reason, reason) && len(c.Node().GPUs) == gpus {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("health is %+v, %d GPUs", h, len(c.Node().GPUs))
			}
		}
	}
	until(true, "", 2)
	require.Equal(t, LevelSwitch, c.Snapshot().Topology.Pairs[0][1].Level)
	for _, lose := range [][]string{{"lose", "0"}, {"lose", "0", "removed"}} {
		simctl(lose...)
		until(false, "the driver no longer lists the GPU", 1)
		require.Len(t, c.Snapshot().Topology.UUIDs, 1)
		simctl("restore", "0")
		until(true, "", 2)
		require.Len(t, c.Snapshot().Topology.UUIDs, 2)
	}
	simctl("xid", "0", "13")
	simctl("xid", "0", "48")
	until(false, "XID 48, which needs a reset", 2)
}
