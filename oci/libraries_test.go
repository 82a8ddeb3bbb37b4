package oci_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

const (
	oldLibrary, newLibrary, third = "libvgpu-0000000000000001.so", "libvgpu-0000000000000002.so", "libvgpu-0000000000000003.so"
	oldStub                       = "libvgpu-cuda-0000000000000001.so"
)

// claimWith makes the directory of a container that has this library and front.
func claimWith(t *testing.T, library, stub string) string {
	dir := t.TempDir()
	share := grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000001", MemoryMiB: 100, CorePercent: 10}
	require.NoError(t, oci.Populate(dir, ledger.Claim{Shares: []grant.Share{share}}, oci.Settings{LibraryPath: library, Stubs: oci.Stubs{CUDA: stub}}))
	return dir
}

func libraryDir(t *testing.T, names ...string) string {
	dir := t.TempDir()
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	return dir
}

// later is when libraries that the test makes are old enough.
func later() time.Time { return time.Now().Add(oci.LibraryGrace + time.Minute) }

func claims(dirs ...string) func() ([]string, error) {
	return func() ([]string, error) { return dirs, nil }
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
	t.Run("an unused library is removed", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, oldStub, newLibrary, "ld.so.preload", "libvgpu.so", "libvgpu-mine.so")
		removed, err := oci.PruneLibraries(dir, now, later(), nil, claims(claimWith(t, "/lib/"+newLibrary, "")))
		require.NoError(t, err)
		require.ElementsMatch(t, []string{oldLibrary, oldStub}, removed)
		require.ElementsMatch(t, []string{newLibrary, "ld.so.preload", "libvgpu.so", "libvgpu-mine.so"}, names(t, dir))
	})
	t.Run("a container keeps what it was made with", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, oldStub, newLibrary, third)
		held := claimWith(t, "/lib/"+oldLibrary, "/lib/"+oldStub)
		// An agent that has found its container running fills the directory again.
		share := grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000001", MemoryMiB: 100, CorePercent: 10}
		require.NoError(t, oci.Populate(held, ledger.Claim{Shares: []grant.Share{share}}, now))
		removed, err := oci.PruneLibraries(dir, now, later(), nil, claims(held))
		require.NoError(t, err)
		require.Equal(t, []string{third}, removed)
		require.NoError(t, os.RemoveAll(held))
		removed, err = oci.PruneLibraries(dir, now, later(), nil, claims(held))
		require.NoError(t, err, "a container that has just gone")
		require.ElementsMatch(t, []string{oldLibrary, oldStub}, removed)
	})
	t.Run("nothing is removed while there is a container of an earlier version's", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, newLibrary)
		removed, err := oci.PruneLibraries(dir, now, later(), nil, claims(t.TempDir()))
		require.NoError(t, err)
		require.Empty(t, removed)
	})
	t.Run("what a CDI spec mounts stays", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, newLibrary)
		spec := filepath.Join(t.TempDir(), "gpuslice.yaml")
		require.NoError(t, os.WriteFile(spec, []byte(`hostPath: "/var/lib/gpuslice/lib/`+oldLibrary+`"`), 0o644))
		removed, err := oci.PruneLibraries(dir, now, later(), []string{spec, filepath.Join(t.TempDir(), "missing")}, claims())
		require.NoError(t, err)
		require.Empty(t, removed)
	})
	t.Run("a new library stays until its use can be recorded", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, third, newLibrary)
		require.NoError(t, os.Chtimes(filepath.Join(dir, third), time.Now().Add(time.Hour), time.Now().Add(time.Hour)))
		removed, err := oci.PruneLibraries(dir, now, time.Now(), nil, claims())
		require.NoError(t, err)
		require.Empty(t, removed)
		removed, err = oci.PruneLibraries(dir, now, later(), nil, claims())
		require.NoError(t, err)
		require.Equal(t, []string{oldLibrary}, removed)
	})
	// The wrapper records the library before the claim: the other order could miss both.
	t.Run("claims are looked at after what is mentioned", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, third, newLibrary)
		mention := filepath.Join(t.TempDir(), "limiter.json")
		require.NoError(t, os.WriteFile(mention, []byte(oldLibrary), 0o644))
		removed, err := oci.PruneLibraries(dir, now, later(), []string{mention}, func() ([]string, error) {
			require.NoError(t, os.WriteFile(mention, []byte(newLibrary), 0o644)) // another is given from now on
			return []string{claimWith(t, "/lib/"+third, "")}, nil
		})
		require.NoError(t, err)
		require.Empty(t, removed)
	})
	t.Run("claims that can't be read", func(t *testing.T) {
		dir := libraryDir(t, oldLibrary, newLibrary)
		_, err := oci.PruneLibraries(dir, now, later(), nil, func() ([]string, error) { return nil, os.ErrPermission })
		require.ErrorIs(t, err, os.ErrPermission)
		require.Len(t, names(t, dir), 2)
	})
}

// Containers of two releases of the limiter have a claim in common.
func TestAddLibraries(t *testing.T) {
	dir := claimWith(t, "/lib/"+oldLibrary, "/lib/"+oldStub)
	for range 2 {
		require.NoError(t, oci.AddLibraries(dir, oci.Settings{LibraryPath: "/lib/" + newLibrary}))
		made, err := oci.LibrariesOf(dir)
		require.NoError(t, err)
		require.Equal(t, []oci.Library{{Name: oldLibrary}, {Name: oldStub}, {Name: newLibrary}}, made)
	}
	dir = t.TempDir()
	require.NoError(t, oci.NoteRestored(dir))
	require.ErrorIs(t, oci.AddLibraries(dir, oci.Settings{LibraryPath: "/lib/" + newLibrary}), oci.ErrUnknownLibraries)
	_, err := oci.LibrariesOf(dir)
	require.ErrorIs(t, err, oci.ErrUnknownLibraries)
}

func TestLibrariesOf(t *testing.T) {
	lib := filepath.Join(libraryDir(t, newLibrary), newLibrary)
	made, err := oci.LibrariesOf(claimWith(t, lib, "/lib/"+oldStub))
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(lib, &st))
	require.Equal(t, []oci.Library{{Name: newLibrary, Device: st.Dev, Inode: st.Ino}, {Name: oldStub}}, made)

	_, err = oci.LibrariesOf(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)

	dir := t.TempDir()
	require.NoError(t, oci.NoteRestored(dir))
	share := grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000001", MemoryMiB: 100, CorePercent: 10}
	require.NoError(t, oci.Populate(dir, ledger.Claim{Shares: []grant.Share{share}}, oci.Settings{LibraryPath: lib}))
	_, err = oci.LibrariesOf(dir)
	require.ErrorIs(t, err, oci.ErrUnknownLibraries)
	removed, err := oci.PruneLibraries(libraryDir(t, oldLibrary), oci.Settings{LibraryPath: lib}, later(), nil, claims(dir))
	require.NoError(t, err)
	require.Empty(t, removed, "the container's library is not known")
}
