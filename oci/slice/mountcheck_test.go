package slice

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// An image may have links (merged /usr), but not in the path of the limiter's directory.
func TestCheckNoLinks(t *testing.T) {
	for name, c := range map[string]struct {
		links map[string]string
		dirs  []string
		bad   bool
	}{
		"none":          {dirs: []string{".gpuslice"}},
		"elsewhere":     {dirs: []string{".gpuslice"}, links: map[string]string{"lib": "usr/lib"}},
		"the directory": {dirs: []string{"srv"}, links: map[string]string{".gpuslice": "/srv"}, bad: true},
		"nothing":       {bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range c.dirs {
				require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
			}
			for link, target := range c.links {
				require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
			}
			err := checkNoLinks(root)
			if c.bad {
				require.ErrorContains(t, err, "remove the link from the image")
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestLimiterFiles(t *testing.T) {
	spec := &rspec.Spec{Mounts: []rspec.Mount{
		{Source: "/data", Destination: "/data"},
		{Source: "/run/gpuslice/containers/a/vgpu", Destination: "/.gpuslice"},
		{Source: "/lib/libvgpu-cuda-0.so", Destination: "/usr/lib/libcuda.so.1"},
		{Source: "/lib/ld.so.preload", Destination: "/etc/ld.so.preload"},
		{Source: "/lib/x86_64-linux-gnu/libnvidia-ptx.so", Destination: "/usr/lib/libnvidia-ptx.so"},
	}}
	require.Equal(t, []File{
		{"/run/gpuslice/containers/a/vgpu", "/.gpuslice"},
		{"/lib/libvgpu-cuda-0.so", "/usr/lib/libcuda.so.1"},
		{"/lib/ld.so.preload", "/etc/ld.so.preload"},
	}, limiterFiles(spec, "/lib"))
}

// A slice's own nodes and their rules are its container's. A rule for more is not.
func TestCheckSpecDeviceRules(t *testing.T) {
	s := Slice{Nodes: []Node{{"/dev/nvidia0", 195, 0}, {"/dev/nvidiactl", 195, 255}}}
	rule := func(kind string, major, minor int64) rspec.LinuxDeviceCgroup {
		return rspec.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: "rwm"}
	}
	c := oci.Container{
		Devices:     []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}, {Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}},
		DeviceRules: []rspec.LinuxDeviceCgroup{rule("c", 195, 0), rule("c", 195, 255)},
	}
	require.NoError(t, checkSpec(s, c))
	for _, more := range []rspec.LinuxDeviceCgroup{rule("a", -1, -1), rule("c", -1, -1), rule("c", 195, -1), rule("c", 195, 1)} {
		with := c
		with.DeviceRules = append(with.DeviceRules[:2:2], more)
		require.ErrorContains(t, checkSpec(s, with), "beside the slice")
	}
}
