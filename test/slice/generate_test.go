//go:build root

package slice

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuslice/gpuslice/test/harness"
)

// stamp changes when a file is written.
func (n *node) stamp(name string) time.Time {
	n.t.Helper()
	info, err := os.Stat(n.path(name))
	require.NoError(n.t, err)
	return info.ModTime()
}

func TestGenerateAgainChangesNothing(t *testing.T) {
	n := newNode(t, []string{"T4", "H200"}, twoOfT4)
	first := n.mustGenerate()
	files := []string{"cdi/gpuslice.yaml", "run/slices/small/vgpu/limits", "run/slices/large/vgpu/usage"}
	before := map[string]time.Time{}
	for _, f := range files {
		before[f] = n.stamp(f)
	}
	require.Equal(t, first, n.mustGenerate())
	for _, f := range files {
		require.Equal(t, before[f], n.stamp(f), f)
	}
	spec, err := cdi.ReadSpec(n.path("cdi/gpuslice.yaml"), 0)
	require.NoError(t, err)
	require.Equal(t, "0.5.0", spec.Version, "podman 4.3 knows no newer one")
}

func TestASliceInUseChangesLater(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	c := n.container("c", n.glibc(), []string{small}, sleep...)
	c.start()
	n.configure("auto", "  small: {memory: 2GiB}\n  large: {memory: 9GiB}\n")
	require.Contains(t, n.mustGenerate(), "in use, unchanged until the container is gone: small")
	out, status := run(t, nil, "runc", append([]string{"exec", c.id}, meminfo...)...)
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296", "it keeps what it has")
	c.stop()
	require.NotContains(t, n.mustGenerate(), "in use")
	out, status = n.container("next", n.glibc(), []string{small}, meminfo...).run()
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=2147483648")
}

// The spec of a slice in use fits its files: the container can be started again without another generation.
func TestASliceInUseStartsAgain(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	first := n.container("first", n.glibc(), []string{small}, sleep...)
	first.start()
	n.configure("preload", twoOfT4)
	for range 2 {
		require.Contains(t, n.mustGenerate(), "in use, unchanged until the container is gone: small")
	}
	first.stop()
	// As docker restart: devices are looked up in the spec at each start.
	out, status := n.container("second", n.glibc(), []string{small}, meminfo...).run()
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296")
	require.NotContains(t, n.mustGenerate(), "in use")
	out, status = n.container("third", n.glibc(), []string{small}, meminfo...).run()
	require.Zero(t, status, out)
}

func TestSlicesThatAreNoMoreWanted(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	c := n.container("c", n.glibc(), []string{small}, sleep...)
	c.start()
	n.configure("auto", "  large: {memory: 10GiB}\n")
	out := n.mustGenerate()
	require.NotContains(t, out, small)
	require.Contains(t, out, "in use, removed when the container is gone: small")
	require.DirExists(t, n.path("run/slices/small"))
	c.stop()
	require.NotContains(t, n.mustGenerate(), "small")
	require.NoDirExists(t, n.path("run/slices/small"))
	n.configure("auto", "  {}\n")
	require.Contains(t, n.mustGenerate(), "no slices")
	require.NoFileExists(t, n.path("cdi/gpuslice.yaml"))
}

// --dry-run shows what would be written, and writes nothing.
func TestDryRun(t *testing.T) {
	n := newNode(t, []string{"T4", "T4"}, "  small: {memory: 4GiB}\n")
	out, status := n.generate("--dry-run")
	require.Zero(t, status, out)
	require.NoDirExists(t, n.path("run/slices"))
	require.NoFileExists(t, n.path("cdi/gpuslice.yaml"))
	n.mustGenerate()

	// A slice that is there keeps its GPU; one in use stays as it is.
	n.configure("preload", "  small: {memory: 4GiB}\n  a-first: {memory: 14GiB}\n")
	c := n.container("c", n.glibc(), []string{small}, sleep...)
	c.start()
	before := n.stamp("cdi/gpuslice.yaml")
	shown := n.mustGenerate("--dry-run")
	require.Contains(t, shown, "# in use, unchanged until the container is gone: small")
	require.Equal(t, before, n.stamp("cdi/gpuslice.yaml"))
	require.NoDirExists(t, n.path("run/slices/a-first"))
	n.mustGenerate()
	written, err := os.ReadFile(n.path("cdi/gpuslice.yaml"))
	require.NoError(t, err)
	want, err := cdi.ParseSpec(written)
	require.NoError(t, err)
	have, err := cdi.ParseSpec([]byte(shown))
	require.NoError(t, err)
	require.Equal(t, want, have)

	n.configure("auto", "  a-first: {memory: 14GiB}\n")
	require.Contains(t, n.mustGenerate("--dry-run"), "# in use, removed when the container is gone: small")
	require.DirExists(t, n.path("run/slices/small"))

	out = n.mustGenerate("--driver", "--dry-run", "--driver-root", n.dir)
	require.Contains(t, out, "nvidia.com/gpu is in "+n.path("cdi/nvidia.yaml")+", nothing is written")
}

func TestASliceThatCantBe(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  small: {memory: 4GiB}\n  huge: {memory: 99GiB}\n")
	out, status := n.generate()
	require.Equal(t, 1, status, out)
	require.Contains(t, out, "slice huge")
	require.Contains(t, out, "gpuslice.io/slice=small", "the others are made")
	out, status = n.container("c", n.glibc(), []string{small}, meminfo...).run()
	require.Zero(t, status, out)
}

func TestGenerateDriver(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  {}\n")
	out := n.mustGenerate("--driver", "--driver-root", n.dir)
	require.Contains(t, out, "nvidia.com/gpu is in "+n.path("cdi/nvidia.yaml")+", nothing is written")
	require.NoFileExists(t, n.path("cdi/gpuslice-nvidia.yaml"))

	require.NoError(t, os.Remove(n.path("cdi/nvidia.yaml")))
	libs := n.path("usr/lib/" + harness.Triplet)
	require.NoError(t, os.MkdirAll(libs, 0o755))
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		data, err := os.ReadFile(artefact(t, "sim", name+".1"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(libs, name+".570.172.08"), data, 0o755))
		require.NoError(t, os.Symlink(name+".570.172.08", filepath.Join(libs, name+".1")))
	}
	out = n.mustGenerate("--driver", "--driver-root", n.dir)
	require.Contains(t, out, "nvidia.com/gpu=0 nvidia.com/gpu=GPU-00000001-5151-4000-8000-000000000001 nvidia.com/gpu=all")
	before := n.stamp("cdi/gpuslice-nvidia.yaml")
	n.mustGenerate("--driver", "--driver-root", n.dir)
	require.Equal(t, before, n.stamp("cdi/gpuslice-nvidia.yaml"))

	// Slices are made of it, hooks and all: ours link the libraries and make the cache.
	n.configure("auto", twoOfT4)
	n.mustGenerate()
	c := n.container("c", n.glibc(), []string{small}, meminfo...)
	c.bind(n.path("sim/state"), "/run/simgpu/state") // which the driver's own spec doesn't know
	out, status := c.run()
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296")
	target, err := os.Readlink(filepath.Join(c.bundle, "rootfs/usr/lib", harness.Triplet, "libcuda.so"))
	require.NoError(t, err)
	require.Equal(t, "libcuda.so.1", target)
	require.FileExists(t, filepath.Join(c.bundle, "rootfs/etc/ld.so.cache"))

	// NVIDIA's toolkit comes: ours goes.
	require.NoError(t, os.WriteFile(n.path("cdi/nvidia.yaml"), []byte("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: \"0\", containerEdits: {env: [A=b]}}]\n"), 0o644))
	out = n.mustGenerate("--driver", "--driver-root", n.dir)
	require.Contains(t, out, "nothing is written")
	require.NoFileExists(t, n.path("cdi/gpuslice-nvidia.yaml"))
}

func TestUsage(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  {}\n")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--driver-root", "here"}, "--driver-root: \"here\" is not an absolute path"},
		{[]string{"--watch", "--dry-run"}, "exclude each other"},
		{[]string{"--interval", "1ms"}, "use 1s or more"},
		{[]string{"small"}, "unexpected arguments (small)"},
	} {
		out, status := n.generate(test.args...)
		require.Equal(t, 2, status, out)
		require.Contains(t, out, test.want)
	}
	out, status := n.generate("--config", n.path("none.yaml"), "--runtime", "/none/gpuslice-runtime")
	require.Equal(t, 1, status, out)
	require.Contains(t, out, "install gpuslice-runtime beside gpuslice")
}

func TestLeftoversOfAKilledGenerationAreRemoved(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	for _, left := range []string{".new-1", ".old-gone"} {
		require.NoError(t, os.Mkdir(n.path("run/slices/"+left), 0o755))
	}
	n.mustGenerate()
	left, err := filepath.Glob(n.path("run/slices/.*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
