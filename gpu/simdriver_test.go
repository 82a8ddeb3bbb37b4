package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The real go-nvml on the simulated driver's libnvidia-ml.so.1.
func TestDiscoverSimulatedDriver(t *testing.T) {
	dir, err := filepath.Abs("../build/sim")
	require.NoError(t, err)
	library, simctl := filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "simctl")
	if _, err := os.Stat(library); err != nil {
		t.Fatal("the simulated driver isn't built: run `make build` first")
	}
	t.Setenv("SIMGPU_STATE", filepath.Join(t.TempDir(), "state"))
	out, err := exec.Command(simctl, "init", "--card", "H200", "--card", "T4").CombinedOutput()
	require.NoError(t, err, "%s", out)

	node, err := Discover(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Empty(t, node.Faults)
	require.Len(t, node.Cards, 2)
	assert.NotEmpty(t, node.DriverVersion)
	assert.Regexp(t, `^\d+\.\d+$`, node.CUDAVersion)

	h200, t4 := node.Cards[0], node.Cards[1]
	assert.Equal(t, int64(143771), h200.MemoryMiB)
	assert.Equal(t, "9.0", h200.ComputeCapability)
	assert.Equal(t, "7.5", t4.ComputeCapability)
	for i, card := range node.Cards {
		assert.Equal(t, i, card.Index)
		assert.Regexp(t, `^GPU-[0-9a-f-]{36}$`, card.UUID)
		assert.NotEmpty(t, card.PCIBusID)
		assert.GreaterOrEqual(t, card.NUMANode, NUMAUnknown)
	}
	assert.NotEqual(t, h200.UUID, t4.UUID)
}

func TestDiscoverWithoutLibrary(t *testing.T) {
	_, err := Discover(nvml.New(nvml.WithLibraryPath("/none/libnvidia-ml.so.1")))
	require.ErrorIs(t, err, nvml.ERROR_LIBRARY_NOT_FOUND)
	assert.ErrorContains(t, err, "install NVIDIA's driver")
}
