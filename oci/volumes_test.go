package oci

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestCheckVolumes(t *testing.T) {
	edits := &cdispec.ContainerEdits{Mounts: []*cdispec.Mount{
		bindMount("/host/preload", "/etc/ld.so.preload"), bindMount("/host/vgpu", "/.gpuslice"),
		bindMount("/host/libvgpu.so", "/.gpuslice/libvgpu.so"), bindMount("/host/stub", "/usr/lib/libcuda.so.1"),
	}}
	empty, has, volume, linked := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "v/_data"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(has, "ld.so.preload"), nil, 0o600))
	require.NoError(t, os.MkdirAll(volume, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(has, "ld.so.preload"), filepath.Join(linked, "ld.so.preload")))
	for _, c := range []struct {
		description string
		mounts      []rspec.Mount
		want        string // empty: it may be made
	}{
		{"no volume", nil, ""},
		{"a directory that lacks the place", []rspec.Mount{bind(empty, "/etc")}, "for which the runtime would make " + filepath.Join(empty, "ld.so.preload") + " on the host"},
		{"one that has it", []rspec.Mount{bind(has, "/etc")}, ""},
		{"one with a link out of it", []rspec.Mount{bind(linked, "/etc")}, "would make"},
		{"a place some directories below", []rspec.Mount{bind(empty, "/usr")}, filepath.Join(empty, "lib/libcuda.so.1")},
		{"by another spelling", []rspec.Mount{bind(empty, "/usr/../etc/")}, "would make"},
		{"a volume of the engine", []rspec.Mount{bind(volume, "/etc")}, ""},
		{"a tmpfs", []rspec.Mount{{Destination: "/etc", Type: "tmpfs", Source: "tmpfs"}}, ""},
		{"a tmpfs on a volume", []rspec.Mount{bind(empty, "/usr"), {Destination: "/usr/lib", Type: "tmpfs", Source: "tmpfs"}}, ""},
		{"a bind by its options", []rspec.Mount{{Destination: "/etc", Source: empty, Options: []string{"rbind"}}}, "would make"},
		{"a neighbour", []rspec.Mount{bind(empty, "/etcetera")}, ""},
		{"a volume that is replaced", []rspec.Mount{bind(empty, "/.gpuslice"), bind(empty, "/etc/ld.so.preload")}, ""},
	} {
		t.Run(c.description, func(t *testing.T) {
			err := CheckVolumes(c.mounts, edits)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
	left, err := os.ReadDir(empty)
	require.NoError(t, err)
	require.Empty(t, left)
}
