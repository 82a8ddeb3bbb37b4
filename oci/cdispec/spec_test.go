package cdispec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

// testNode has the GPUs of oci's own tests.
func testNode(t *testing.T) Node {
	t.Helper()
	dir, err := filepath.Abs("../testdata/cdi")
	require.NoError(t, err)
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)
	return Node{
		StateDir: "/run/gpuslice", Program: "/usr/bin/gpuslice-runtime", GPUs: gpus(), Devices: registry,
		Settings: oci.Settings{
			LibraryPath: "/var/lib/gpuslice/lib/libvgpu-0123456789abcdef.so", PreloadPath: "/var/lib/gpuslice/lib/ld.so.preload",
			Stubs: oci.Stubs{CUDA: "/var/lib/gpuslice/lib/libvgpu-cuda-0123456789abcdef.so", NVML: "/var/lib/gpuslice/lib/libvgpu-nvml-0123456789abcdef.so"},
		},
	}
}

func TestSpecGolden(t *testing.T) {
	for _, test := range []struct {
		name string
		mode oci.LimiterMode
	}{{"slices-preload", oci.LimiterPreload}, {"slices-auto", oci.LimiterAuto}} {
		t.Run(test.name, func(t *testing.T) {
			n := testNode(t)
			n.Settings.LimiterMode = test.mode
			two := amount(8)
			two.Devices = request.Devices{Count: 2}
			planned, err := Plan(config(map[string]request.Slice{"small": amount(4), "two": two}), gpus(), nil)
			require.NoError(t, err)
			spec, made, err := Spec(planned, n)
			require.NoError(t, err)
			require.Len(t, made, 2)
			for i, s := range made {
				require.Equal(t, planned[i].Shares, s.Shares)
				require.NotEmpty(t, s.GPUs)
				for _, f := range []string{"/.gpuslice", "/.gpuslice/libvgpu.so", "/.gpuslice/usage", "/etc/ld.so.preload"} {
					require.Contains(t, paths(s.Files), f, "the hook looks for it")
				}
				require.NotContains(t, paths(s.Files), "/usr/bin/nvidia-smi")
				require.Contains(t, s.Nodes, slice.Node{Path: "/dev/nvidiactl", Major: 195, Minor: 255})
			}
			dir := t.TempDir()
			_, err = Write(dir, SliceFile, spec)
			require.NoError(t, err)
			have, err := os.ReadFile(filepath.Join(dir, SliceFile))
			require.NoError(t, err)
			lines, err := ocitest.CDILines(have)
			require.NoError(t, err)
			golden.Check(t, filepath.Join("testdata", test.name+".txt"), lines)
		})
	}
}

func paths(files []slice.File) []string {
	var all []string
	for _, f := range files {
		all = append(all, f.Container)
	}
	return all
}

func TestSpecWithoutTheDriversSpec(t *testing.T) {
	n := testNode(t)
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: []string{t.TempDir()}})
	require.NoError(t, err)
	n.Devices = registry
	planned := []Planned{{Name: "small", Shares: []grant.Share{{UUID: gpuA, MemoryMiB: 4096}}}}
	_, made, err := Spec(planned, n)
	require.ErrorContains(t, err, "slice small")
	require.ErrorContains(t, err, "no CDI device nvidia.com/gpu="+gpuA)
	require.Empty(t, made)
}
