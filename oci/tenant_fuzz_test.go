package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

// The files of an image are not trusted: no link leads out of its root, and the list in its
// ld.so.preload is read as glibc reads it.
func FuzzRootfsFacts(f *testing.F) {
	outside := filepath.Join(f.TempDir(), "outside")
	require.NoError(f, os.WriteFile(outside, []byte("/outside/the/image.so\n"), 0o644))
	root := f.TempDir()
	for _, dir := range []string{"etc", "lib64", "proc"} {
		require.NoError(f, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	f.Add("/lib/a.so:/lib/b.so\n# comment\n/.gpuslice/libvgpu.so", "/etc/list", uint8(0))
	f.Add("x", outside, uint8(1))
	f.Add("x", "../../../../../../../.."+outside, uint8(1))
	f.Add("x", "/proc/self/root"+outside, uint8(3))
	f.Add("x", "ld.so.preload", uint8(2))
	f.Fuzz(func(t *testing.T, text, link string, shape uint8) {
		if link == "" || strings.ContainsRune(link, 0) || len(link) > 1000 {
			link = "x"
		}
		preload, loader := filepath.Join(root, api.ContainerPreloadPath), filepath.Join(root, glibcLoaders["amd64"][0])
		for _, path := range []string{preload, loader} {
			require.NoError(t, os.RemoveAll(path))
		}
		if shape&1 != 0 {
			require.NoError(t, os.Symlink(link, preload))
		} else {
			require.NoError(t, os.WriteFile(preload, []byte(text), 0o644))
		}
		if shape&2 != 0 {
			require.NoError(t, os.Symlink(link, loader))
		}
		facts, err := RootfsFacts(root, []string{"LD_PRELOAD=" + api.ContainerPreloadPath + ":" + glibcLoaders["amd64"][0] + "/x:/proc/self/root"})
		if err != nil {
			return // the container is refused
		}
		require.NotContains(t, facts.Preload, "/outside/")
		for file, to := range facts.Links {
			require.True(t, filepath.IsAbs(to) && filepath.Clean(to) == to, "%s -> %s", file, to)
			require.NotEqual(t, filepath.Clean(file), to)
		}
		require.Equal(t, facts.Preload, preloadList(facts.Preload), "as it is read again")
		for line := range strings.Lines(facts.Preload) {
			name := strings.TrimSuffix(line, "\n")
			require.NotEmpty(t, name)
			require.NotEqual(t, api.ContainerLibraryPath, name)
			require.NotContains(t, name, ":")
		}
	})
}

// No text around the name of a driver's library hides it in a variable of the loader.
func FuzzCheckLoading(f *testing.F) {
	f.Add("/lib/a.so", ":")
	f.Add("", " ")
	f.Add("/.gpuslice/../.gpuslice/driver", ";")
	f.Fuzz(func(t *testing.T, text, separator string) {
		if strings.ContainsRune(text, 0) {
			return // not possible in a variable
		}
		check := func(value string) error {
			return CheckLoading(EnforceBoth, Container{Env: []string{"LD_PRELOAD=" + value}})
		}
		_ = check(text)
		if separator != ":" {
			separator = " " // ld.so(8): colons and spaces
		}
		for _, hidden := range []string{driverDir + "/cuda", driverDir + "/./cuda", "libcuda.so.1"} {
			require.Error(t, check(text+separator+hidden), hidden)
			require.Error(t, check(hidden+separator+text), hidden)
		}
	})
}
