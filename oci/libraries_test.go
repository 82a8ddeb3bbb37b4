package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
)

const (
	oldLibrary, newLibrary, third = "libvgpu-0000000000000001.so", "libvgpu-0000000000000002.so", "libvgpu-0000000000000003.so"
	oldFront                      = "libvgpu-cuda-0000000000000001.so"
)

// claimWith makes the folder of a container that has this library and front.
func claimWith(t *testing.T, library, front string) string {
	dir := t.TempDir()
	share := grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000001", MemoryMiB: 100, CorePercent: 10}
	require.NoError(t, oci.Populate(dir, grant.Claim{Shares: []grant.Share{share}}, oci.Settings{LibraryPath: library, Fronts: oci.Fronts{CUDA: front}}))
	return dir
}

func libraryDir(t *testing.T, names ...string) string {
	dir := t.TempDir()
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	return dir
}

func names(t *testing.T, dir string) (all []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestPruneLibraries(t *testing.T) {
	now := oci.Settings{LibraryPath: "/lib/" + newLibrary}
	t.Run("what nobody has is removed", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, oldFront, newLibrary, "ld.so.preload", "libvgpu.so", "libvgpu-mine.so")
		removed, err := oci.PruneLibraries(dir, now, []string{claimWith(t, "/lib/"+newLibrary, "")}, nil)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{oldLibrary, oldFront}, removed)
		require.ElementsMatch(t, []string{newLibrary, "ld.so.preload", "libvgpu.so", "libvgpu-mine.so"}, names(t, dir))
	})
	t.Run("a container keeps what it was made with", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, oldFront, newLibrary, third)
		folder := claimWith(t, "/lib/"+oldLibrary, "/lib/"+oldFront)
		// An agent that has found its container running fills the folder again.
		share := grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000001", MemoryMiB: 100, CorePercent: 10}
		require.NoError(t, oci.Populate(folder, grant.Claim{Shares: []grant.Share{share}}, now))
		removed, err := oci.PruneLibraries(dir, now, []string{folder}, nil)
		require.NoError(t, err)
		require.Equal(t, []string{third}, removed)
		require.NoError(t, os.RemoveAll(folder))
		removed, err = oci.PruneLibraries(dir, now, []string{folder}, nil)
		require.NoError(t, err, "a container that has just gone")
		require.ElementsMatch(t, []string{oldLibrary, oldFront}, removed)
	})
	t.Run("nothing is removed while there is a container of an earlier version's", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, newLibrary)
		removed, err := oci.PruneLibraries(dir, now, []string{t.TempDir()}, nil)
		require.NoError(t, err)
		require.Empty(t, removed)
	})
	t.Run("what a CDI spec mounts stays", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, newLibrary)
		spec := filepath.Join(t.TempDir(), "gpuslice.yaml")
		require.NoError(t, os.WriteFile(spec, []byte(`hostPath: "/var/lib/gpuslice/lib/`+oldLibrary+`"`), 0o644))
		removed, err := oci.PruneLibraries(dir, now, nil, []string{spec, filepath.Join(t.TempDir(), "missing")})
		require.NoError(t, err)
		require.Empty(t, removed)
	})
}
