package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
)

// What `gpus` asks of a driver is what the others show: the whole way, with NVML's own
// functions on the simulated driver.
func TestTopologyOfADriver(t *testing.T) {
	sim, err := filepath.Abs("../../build/sim")
	require.NoError(t, err)
	t.Setenv("SIMGPU_STATE", filepath.Join(t.TempDir(), "state"))
	out, err := exec.Command(filepath.Join(sim, "simctl"), "init",
		"--gpu", "H200:pci_switch=0,nvlink=1:4", "--gpu", "H200:pci_switch=0", "--gpu", "T4:pci_switch=1,numa=1").CombinedOutput()
	require.NoError(t, err, "%s (make build makes it)", out)
	dir := filepath.Join(t.TempDir(), "gpuslice")
	ledger, err := ledger.Open(dir)
	require.NoError(t, err)
	require.NoError(t, ledger.Close())
	gpus := shows(t, "gpus", "--nvml-library", filepath.Join(sim, "libnvidia-ml.so.1"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(gpus), 0o600))

	tree := shows(t, "topology", "--state-dir", dir)
	assert.Contains(t, tree, "\n├─ PIX      2/2")
	assert.Contains(t, tree, "\n│  └─ GPU1  free  NV4: 0 ")
	assert.Contains(t, tree, "\n└─ GPU2     free")
	matrix := shows(t, "topology", "--matrix", "--state-dir", dir)
	assert.True(t, strings.HasPrefix(matrix, "\tGPU0\tGPU1\tGPU2\tCPU Affinity\t"), matrix)
	assert.Contains(t, matrix, "\nGPU1\tNV4\t X \tSYS\t")
	assert.Contains(t, shows(t, "describe", "gpu", "2", "--state-dir", dir), "Tesla T4")
}
