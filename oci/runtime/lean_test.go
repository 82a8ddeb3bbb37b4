package ociruntime

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program runs several times for each container. What it is linked with costs time
// at each start: cgo the C library's loader, the network's packages their tables.
func TestLinkedWithLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/gpuslice/gpuslice/cmd/gpuslice-runtime").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "github.com/gpuslice/gpuslice/oci/runtime")
	for _, heavy := range []string{"runtime/cgo", "net", "github.com/NVIDIA/go-nvml/pkg/nvml", "github.com/gpuslice/gpuslice/nvidia"} {
		require.NotContains(t, packages, heavy)
	}
}
