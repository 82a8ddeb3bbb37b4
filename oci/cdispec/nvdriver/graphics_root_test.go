//go:build root

package nvdriver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/cdispec"
)

// Of a whole driver, as NVIDIA's generator finds it, a share has what CUDA and NVML need.
func TestAShareHasNoGraphicsOfTheDriver(t *testing.T) {
	root, lib, _ := driverRoot(t, "H200")
	version := driverVersion(t, lib)
	const libs = "usr/lib/x86_64-linux-gnu/"
	for _, name := range []string{
		libs + "libnvidia-ptxjitcompiler.so." + version, libs + "libnvidia-encode.so." + version, libs + "libnvidia-allocator.so." + version,
		libs + "libnvidia-opencl.so." + version, libs + "libGLX_nvidia.so." + version, libs + "libEGL_nvidia.so." + version,
		libs + "libnvidia-glcore.so." + version, libs + "libnvidia-vulkan-producer.so." + version, libs + "libnvoptix.so." + version,
		libs + "libnvidia-egl-gbm.so.1.1.2", libs + "vdpau/libvdpau_nvidia.so." + version,
		libs + "nvidia/xorg/nvidia_drv.so", libs + "nvidia/xorg/libglxserver_nvidia.so." + version,
		"etc/vulkan/icd.d/nvidia_icd.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/nvidia/nvoptix.bin",
	} {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, nil, 0o755))
	}
	spec, err := Generate(Options{Root: root, NVML: lib, HookPath: "/usr/bin/nvidia-cdi-hook"})
	require.NoError(t, err)
	dir := t.TempDir()
	_, err = cdispec.Write(dir, "nvidia.yaml", spec)
	require.NoError(t, err)
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)

	mounts := func(graphics bool) (names []string) {
		result, err := oci.Edits([]grant.Share{{UUID: "GPU-00000001-5151-4000-8000-000000000001", MemoryMiB: 1000}},
			oci.Settings{Injection: oci.InjectCDI, LibraryPath: "/l/libvgpu.so", PreloadPath: "/l/ld.so.preload", Graphics: graphics},
			oci.Container{ID: "c", Dir: "/run/gpuslice/containers/c"}, registry)
		require.NoError(t, err)
		for _, m := range result.Edits.Mounts {
			if filepath.Dir(m.HostPath) != "/l" && !strings.HasPrefix(m.HostPath, "/run/gpuslice/containers/c/") {
				names = append(names, filepath.Base(m.ContainerPath))
			}
		}
		if !graphics {
			for _, h := range result.Edits.Hooks {
				for _, arg := range h.Args {
					require.NotRegexp(t, "GL|gbm|vulkan", arg)
				}
			}
		}
		return names
	}
	cuda := []string{
		"nvidia-smi", "libcuda.so." + version, "libnvidia-ml.so." + version,
		"libnvidia-ptxjitcompiler.so." + version, "libnvidia-encode.so." + version, "libnvidia-allocator.so." + version,
	}
	require.ElementsMatch(t, cuda, mounts(false))
	require.Subset(t, mounts(true), append([]string{"libnvidia-opencl.so." + version, "libGLX_nvidia.so." + version, "nvidia_icd.json", "nvidia_drv.so"}, cuda...))
}
