package main

import (
	"debug/elf"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Runtimes run it as root, as a hook in containers too: no loader may read a variable, or
// a file, of the image's on its way.
func TestNoLoaderIsAsked(t *testing.T) {
	path, err := harness.Artefact("bin", "gpuslice-runtime")
	require.NoError(t, err)
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for _, segment := range f.Progs {
		require.NotContains(t, []elf.ProgType{elf.PT_INTERP, elf.PT_DYNAMIC}, segment.Type, "build it with CGO_ENABLED=0")
	}
}
