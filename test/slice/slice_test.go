//go:build root

package slice

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	small   = "gpuslice.io/slice=small"
	twoOfT4 = "  small: {memory: 4GiB, cores: 30}\n  large: {memory: 10GiB}\n"
)

var (
	meminfo = []string{"/opt/workloads/meminfo"}
	sleep   = []string{"/bin/busybox", "sleep", "1000"}
)

func TestLimitsOfASlice(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	for _, mode := range []string{"auto", "preload", "library"} {
		n.configure(mode, twoOfT4)
		n.mustGenerate()
		c := n.container("limits-"+mode, n.glibc(), []string{small}, meminfo...)
		out, status := c.run()
		require.Zero(t, status, out)
		require.Contains(t, out, "total_bytes=4294967296", mode)
		require.NotContains(t, out, "total_bytes=16106127360")
		require.Empty(t, n.claims(), "the share is given back")

		c = n.container("over-"+mode, n.glibc(), []string{small}, "/opt/workloads/hold", "--mib", "5000", "--seconds", "1")
		out, status = c.run()
		require.NotZero(t, status, out)
		require.Contains(t, out, "OUT_OF_MEMORY", mode)
	}
}

func TestOneContainerAtATime(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	first := n.container("first", n.glibc(), []string{small}, sleep...)
	first.start()
	require.Equal(t, []string{first.id}, n.claims())

	second := n.container("second", n.glibc(), []string{small}, meminfo...)
	out, status := second.run()
	require.NotZero(t, status)
	require.Contains(t, out, "container "+first.id+" uses it, and a slice is for one container at a time: free slices: large")
	require.Equal(t, []string{first.id}, n.claims())

	third := n.container("third", n.glibc(), []string{"gpuslice.io/slice=large"}, meminfo...)
	out, status = third.run()
	require.Zero(t, status, out)

	first.stop()
	require.Empty(t, n.claims())
	out, status = second.run()
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296")
}

func TestSlicesNeverOverbookTheGPU(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  a: {memory: 9GiB}\n  b: {memory: 9GiB}\n")
	n.mustGenerate()
	a := n.container("a", n.glibc(), []string{"gpuslice.io/slice=a"}, sleep...)
	a.start()
	out, status := n.container("b", n.glibc(), []string{"gpuslice.io/slice=b"}, meminfo...).run()
	require.NotZero(t, status)
	require.Contains(t, out, "memory 9216 MiB requested")
	require.Equal(t, []string{a.id}, n.claims())
}

func TestWhatIsNotHeldIsRefused(t *testing.T) {
	volume := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(volume, "limits"), nil, 0o644))
	musl, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	linked := func(r harness.Root) harness.Root {
		// The runtime makes the mounts at the link's target, which a volume then hides.
		r.Dirs = append(r.Dirs, "data")
		r.Links[".gpuslice"] = "/data/sub"
		return r
	}
	for _, test := range []struct {
		name    string
		mode    string
		image   func(harness.Root) harness.Root
		devices []string
		edit    func(*rspec.Spec)
		want    string
	}{
		{name: "a GPU beside the slice", devices: []string{small, "nvidia.com/gpu=1"}, want: "device node /dev/nvidia1 beside the slice"},
		{name: "another GPU under the slice's path", edit: func(s *rspec.Spec) {
			for i := range s.Linux.Devices {
				if s.Linux.Devices[i].Path == "/dev/nvidia0" {
					s.Linux.Devices[i].Minor = 1
				}
			}
		}, want: "device node /dev/nvidia0 beside the slice"},
		{name: "a rule by which it could make another GPU's node", edit: func(s *rspec.Spec) {
			major := int64(195) // --device-cgroup-rule 'c 195:* rwm'
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rspec.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"})
		}, want: "beside the slice"},
		{name: "two slices", devices: []string{small, "gpuslice.io/slice=large"}, want: "is not what gpuslice mounts there"},
		{name: "a volume over the limits", edit: func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: "/.gpuslice", Source: volume, Options: []string{"bind"}})
		}, want: "is not what gpuslice mounts there"},
		{name: "a volume over the preload", edit: func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: "/etc/ld.so.preload", Source: filepath.Join(volume, "limits"), Options: []string{"bind"}})
		}, want: "/etc/ld.so.preload in the container is not what gpuslice mounts there"},
		{name: "an image that links the limiter's directory into a volume", image: linked, edit: func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: "/data", Source: volume, Options: []string{"bind"}})
		}, want: "the limiter's file"},
		{name: "an image with a variable that leads to the driver", mode: "library", edit: func(s *rspec.Spec) {
			s.Process.Env = append(s.Process.Env, "LD_LIBRARY_PATH=/.gpuslice/driver")
		}, want: "LD_LIBRARY_PATH has /.gpuslice/driver"},
		{name: "an image that loads the driver before the limiter", edit: func(s *rspec.Spec) {
			s.Process.Env = append(s.Process.Env, "LD_PRELOAD=/.gpuslice/driver/cuda")
		}, want: "before the limiter"},
		{name: "an image with programs that read no preload", mode: "preload", image: func(harness.Root) harness.Root { return musl }, want: "set limiterMode to auto or library"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, []string{"T4", "T4"}, "  small: {memory: 4GiB, devices: \"device=0\"}\n  large: {memory: 4GiB, devices: \"device=0\"}\n")
			if test.mode != "" {
				n.configure(test.mode, twoOfT4)
			}
			n.mustGenerate()
			image, devices := n.glibc(), test.devices
			if test.image != nil {
				image = test.image(image)
			}
			if devices == nil {
				devices = []string{small}
			}
			c := n.container("c", image, devices, meminfo...)
			if test.edit != nil {
				c.edit(test.edit)
			}
			out, status := c.run()
			require.NotZero(t, status, out)
			require.Contains(t, out, test.want)
			require.NotContains(t, out, "total_bytes")
			require.Empty(t, n.claims())
		})
	}
}

func TestMuslImageIsHeldByTheFronts(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	musl, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	c := n.container("musl", musl, []string{small}, meminfo...)
	c.edit(func(s *rspec.Spec) { s.Process.Env = append(s.Process.Env, harness.GcompatEnv) })
	out, status := c.run()
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296")
}

// With the wrapper as the engine's default runtime, slices work as with plain runc.
func TestWithTheWrapperAsRuntime(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	t.Setenv("GPUSLICE_RUNTIME_CONFIG", n.path("runtime.yaml"))
	wrapper := artefact(t, "bin", "gpuslice-runtime")
	for range 2 {
		c := n.container("held", n.glibc(), []string{small}, sleep...)
		c.background(wrapper, "create", "--bundle", c.bundle, c.id)
		require.Equal(t, []string{c.id}, n.claims())
		out, status := run(t, nil, wrapper, "delete", "--force", c.id)
		require.Zero(t, status, out)
		require.Empty(t, n.claims())
		require.NoError(t, os.RemoveAll(c.bundle))
	}
	c := n.container("shown", n.glibc(), []string{small}, meminfo...)
	out, status := run(t, nil, wrapper, "run", "--bundle", c.bundle, c.id)
	require.Zero(t, status, out)
	require.Contains(t, out, "total_bytes=4294967296")
	require.Empty(t, n.claims())
}
