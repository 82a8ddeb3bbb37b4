package main

import (
	"debug/elf"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// It runs as root, and as a hook with the variables of a container: a loader must not read these,
// or files of the image.
func TestProgramIsStatic(t *testing.T) {
	path, err := harness.Artefact("bin", "gpuslice-runtime")
	require.NoError(t, err)
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for _, segment := range f.Progs {
		require.NotContains(t, []elf.ProgType{elf.PT_INTERP, elf.PT_DYNAMIC}, segment.Type, "build it with CGO_ENABLED=0")
	}
}
