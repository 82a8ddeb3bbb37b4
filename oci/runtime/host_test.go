package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/test/harness"
)

func TestFindLimiter(t *testing.T) {
	dir := t.TempDir()
	config := request.DefaultConfig()
	config.StateDir, config.LibraryDir = filepath.Join(dir, "run"), filepath.Join(dir, "lib")
	require.NoError(t, os.Mkdir(config.StateDir, 0o755))
	self := filepath.Join(dir, "release/bin/gpuslice-runtime")

	_, err := FindLimiter(config, self)
	require.ErrorContains(t, err, "install gpuslice again")
	for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"} {
		built, err := harness.Artefact("lib", name)
		require.NoError(t, err)
		write(t, filepath.Join(dir, "release/lib/gpuslice", name), read(t, built), 0o755)
	}
	first, err := FindLimiter(config, self)
	require.NoError(t, err)
	for _, path := range []string{first.Library, first.Preload, first.Fronts.CUDA, first.Fronts.NVML} {
		require.FileExists(t, path)
		require.Equal(t, config.LibraryDir, filepath.Dir(path))
	}
	again, err := FindLimiter(config, self)
	require.NoError(t, err)
	require.Equal(t, first, again)

	// What is known is looked at: an installed file that went is installed again, and
	// another library is another file.
	require.NoError(t, os.Remove(first.Fronts.CUDA))
	again, err = FindLimiter(config, self)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.FileExists(t, first.Fronts.CUDA)
	source := filepath.Join(dir, "release/lib/gpuslice/libvgpu.so")
	write(t, source, read(t, source)+"newer", 0o755)
	newer, err := FindLimiter(config, self)
	require.NoError(t, err)
	require.NotEqual(t, first.Library, newer.Library)
	require.FileExists(t, first.Library, "containers that run have it mapped")
	require.NoError(t, os.WriteFile(filepath.Join(config.StateDir, "limiter.json"), []byte("{"), 0o600))
	again, err = FindLimiter(config, self)
	require.NoError(t, err)
	require.Equal(t, newer, again)

	// Without what it came with, the newest that is installed.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "release")))
	again, err = FindLimiter(config, self)
	require.NoError(t, err)
	require.Equal(t, newer, again)
}
