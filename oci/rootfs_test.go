package oci

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

// image makes a root file system: a name that ends in / is a directory, "link -> target"
// a link, and what follows a = is a file's content. amd64's loaders become this machine's.
func image(t testing.TB, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	loader := glibcLoaders[runtime.GOARCH][0]
	here := strings.NewReplacer("lib64", filepath.Base(filepath.Dir(loader)), "ld-linux-x86-64.so.2", filepath.Base(loader),
		"ld-musl-x86_64.so.1", filepath.Base(muslLoaders[runtime.GOARCH][0]))
	for _, e := range entries {
		e = here.Replace(e)
		name, target, isLink := strings.Cut(e, " -> ")
		name, content, _ := strings.Cut(name, "=")
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case isLink:
			require.NoError(t, os.Symlink(target, path))
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(path, 0o755))
		default:
			require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
	return root
}

func TestRootfsFacts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("/secret.so\n"), 0o644))
	tests := []struct {
		description string
		entries     []string
		want        Rootfs
	}{
		{"empty", nil, Rootfs{}},
		{"debian", []string{"usr/lib64/ld-linux-x86-64.so.2", "lib64 -> usr/lib64", "etc/"}, Rootfs{Glibc: true}},
		{"absolute links are the image's", []string{"usr/lib64/ld-2.36.so", "usr/lib64/ld-linux-x86-64.so.2 -> /usr/lib64/ld-2.36.so", "lib64 -> /usr/lib64"}, Rootfs{Glibc: true}},
		{"another machine's", []string{"lib/ld-linux-riscv64-lp64d.so.1", "lib/ld-musl-riscv64.so.1"}, Rootfs{}},
		{"alpine", []string{"lib/ld-musl-x86_64.so.1", "etc/passwd"}, Rootfs{Musl: true}},
		{"alpine with gcompat", []string{"lib/ld-musl-x86_64.so.1", "lib/ld-linux-x86-64.so.2 -> libgcompat.so.0", "lib/libgcompat.so.0"}, Rootfs{Glibc: true, Musl: true}},
		{"a loader that is a directory", []string{"lib64/ld-linux-x86-64.so.2/"}, Rootfs{}},
		{"a loader that is a dangling link", []string{"lib64/ld-linux-x86-64.so.2 -> /nowhere"}, Rootfs{}},
		{"links in a circle", []string{"lib64 -> lib0", "lib0 -> lib64"}, Rootfs{}},
		{"a file for a directory", []string{"lib64=", "etc="}, Rootfs{}},
		{"its own preload", []string{"lib64/ld-linux-x86-64.so.2", "etc/ld.so.preload=/lib/a.so"}, Rootfs{Glibc: true, Preload: "/lib/a.so\n"}},
		{"as glibc reads it", []string{"etc/ld.so.preload=# ours\n/lib/a.so:/lib/b.so\t c.so # and\n\n\n/lib/$LIB/d.so"}, Rootfs{Preload: "/lib/a.so\n/lib/b.so\nc.so\n/lib/$LIB/d.so\n"}},
		{"an empty one", []string{"etc/ld.so.preload=\n# none\n"}, Rootfs{}},
		{"a limiter's left in an image", []string{"etc/ld.so.preload=/.gpuslice/libvgpu-before-libasan.so\n"}, Rootfs{}},
		{"a preload that is a link out of the image", []string{"etc/ld.so.preload -> ../../../../../../../.." + outside}, Rootfs{}},
		{"a preload that is an absolute link", []string{"etc/ld.so.preload -> /opt/list", "opt/list=/opt/x.so"}, Rootfs{Preload: "/opt/x.so\n"}},
		{"a preload that is a directory", []string{"etc/ld.so.preload/"}, Rootfs{}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			got, err := RootfsFacts(image(t, tt.entries...), nil)
			require.NoError(t, err)
			assert.Equal(t, tt.want, *got)
		})
	}

	got, err := RootfsFacts(image(t, "opt/a -> /opt/b", "opt/b -> ../.gpuslice/driver", "opt/c -> /proc/self/root/x", ".gpuslice -> /v", "opt/d.so="),
		[]string{"LD_PRELOAD=/opt/a/cuda:/opt/d.so relative/x.so", "LD_LIBRARY_PATH=/opt/c", "LD_AUDIT=/nowhere"})
	require.NoError(t, err)
	assert.Equal(t, Rootfs{Links: map[string]string{
		"/opt/a/cuda": "/v/driver/cuda", "/opt/c": "/proc/self/root/x", "/.gpuslice/driver": "/v/driver",
	}}, *got)
	_, err = RootfsFacts(image(t), []string{"LD_PRELOAD=" + strings.Repeat("/x:", 2000)})
	assert.ErrorContains(t, err, "have 2000 paths")

	pipe := image(t, "etc/")
	require.NoError(t, syscall.Mkfifo(filepath.Join(pipe, "etc/ld.so.preload"), 0o644))
	got, err = RootfsFacts(pipe, nil)
	require.NoError(t, err, "a pipe is not waited for")
	assert.Equal(t, Rootfs{}, *got)

	_, err = RootfsFacts(image(t, "etc/ld.so.preload="+strings.Repeat("/lib/a.so\n", 10_000)), nil)
	assert.ErrorContains(t, err, "make it shorter")
	_, err = RootfsFacts(filepath.Join(t.TempDir(), "nothing"), nil)
	assert.ErrorContains(t, err, "root file system")
}

func TestPopulatePreload(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, PopulatePreload(dir, nil))
	require.NoError(t, PopulatePreload(dir, &Rootfs{Glibc: true}))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, files, "the node's file does")
	for range 2 {
		require.NoError(t, PopulatePreload(dir, &Rootfs{Glibc: true, Preload: "/lib/a.so\n"}))
	}
	text, err := os.ReadFile(filepath.Join(dir, "ld.so.preload"))
	require.NoError(t, err)
	assert.Equal(t, "/.gpuslice/libvgpu-before-libasan.so\n/lib/a.so\n", string(text), "the limiter first")
}

func TestInstallStubs(t *testing.T) {
	src, dir := library(t, "limiter"), filepath.Join(t.TempDir(), "lib")
	_, err := InstallStubs(src, dir)
	require.ErrorContains(t, err, "limiter mode to preload")
	for _, name := range []string{"libvgpu-cuda.so", "libvgpu-nvml.so"} {
		require.NoError(t, os.Rename(library(t, name), filepath.Join(filepath.Dir(src), name)))
	}
	stubs, err := InstallStubs(src, dir)
	require.NoError(t, err)
	assert.Regexp(t, `/libvgpu-cuda-[0-9a-f]{16}\.so$`, stubs.CUDA)
	assert.Regexp(t, `/libvgpu-nvml-[0-9a-f]{16}\.so$`, stubs.NVML)
	sameFile(t, filepath.Join(filepath.Dir(src), "libvgpu-cuda.so"), stubs.CUDA)
	sameFile(t, filepath.Join(filepath.Dir(src), "libvgpu-nvml.so"), stubs.NVML)
	again, err := InstallStubs(src, dir)
	require.NoError(t, err)
	assert.Equal(t, stubs, again)
}

// What the wrapper adds to a creation by looking into the image.
func BenchmarkRootfsFacts(b *testing.B) {
	root := image(b, "usr/lib64/ld-linux-x86-64.so.2", "lib64 -> usr/lib64", "etc/ld.so.preload=/lib/a.so")
	for b.Loop() {
		if _, err := RootfsFacts(root, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// The files of an image are not trusted: no link leads out of its root, and the list in its
// ld.so.preload is read as glibc reads it.
func FuzzRootfsFacts(f *testing.F) {
	outside := filepath.Join(f.TempDir(), "outside")
	require.NoError(f, os.WriteFile(outside, []byte("/outside/the/image.so\n"), 0o644))
	root := f.TempDir()
	for _, dir := range []string{"etc", filepath.Dir(glibcLoaders[runtime.GOARCH][0]), "proc"} {
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
		preload, loader := filepath.Join(root, api.ContainerPreloadPath), filepath.Join(root, glibcLoaders[runtime.GOARCH][0])
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
		facts, err := RootfsFacts(root, []string{"LD_PRELOAD=" + api.ContainerPreloadPath + ":" + glibcLoaders[runtime.GOARCH][0] + "/x:/proc/self/root"})
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
			require.NotEqual(t, api.ContainerPreloadedPath, name)
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
