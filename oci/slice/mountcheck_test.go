package slice

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
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
