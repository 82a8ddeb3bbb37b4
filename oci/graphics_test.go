package oci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestGraphicsFile(t *testing.T) {
	for file, want := range map[string]bool{
		"/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.570.172.08":                          true,
		"/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1":                                   true,
		"/etc/OpenCL/vendors/nvidia.icd":                                                    true,
		"/usr/lib64/libGLX_nvidia.so.570.172.08":                                            true,
		"/usr/lib64/libEGL_nvidia.so.0":                                                     true,
		"/usr/lib64/libnvidia-egl-wayland.so.1.1.19":                                        true,
		"/usr/lib64/libnvoptix.so.570.172.08":                                               true,
		"/usr/share/nvidia/nvoptix.bin":                                                     true,
		"/etc/vulkan/icd.d/nvidia_icd.json":                                                 true,
		"/etc/vulkan/icd.d/nvidia_icd.x86_64.json":                                          true,
		"/etc/vulkan/implicit_layer.d/nvidia_layers.json":                                   true,
		"/usr/share/glvnd/egl_vendor.d/10_nvidia.json":                                      true,
		"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json":                         true,
		"/usr/share/X11/xorg.conf.d/10-nvidia.conf":                                         true,
		"/usr/lib/x86_64-linux-gnu/nvidia/xorg/nvidia_drv.so":                               true,
		"/usr/lib/x86_64-linux-gnu/../x86_64-linux-gnu//nvidia/xorg/libglxserver_nvidia.so": true,
		"/usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so":                                   true,
		"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.570.172.08":                     true,
		"/dev/dri/renderD128":                                                               true,
		"/dev/nvidia-modeset":                                                               true,

		"/usr/lib/x86_64-linux-gnu/libcuda.so.570.172.08":                  false,
		"/usr/lib/x86_64-linux-gnu/libcudadebugger.so.570.172.08":          false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":                      false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.570.172.08": false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.570.172.08":           false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.570.172.08":        false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-allocator.so.570.172.08":      false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-cfg.so.570.172.08":            false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.570.172.08":         false,
		"/usr/lib/x86_64-linux-gnu/libnvcuvid.so.570.172.08":               false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so.570.172.08":    false,
		"/usr/lib/x86_64-linux-gnu/libnvidia-tls-something.so.570.172.08":  false,
		"/usr/lib/x86_64-linux-gnu/libGL":                                  false,
		"/usr/bin/nvidia-smi":                                              false,
		"/lib/firmware/nvidia/570.172.08/gsp_ga10x.bin":                    false,
		"/dev/nvidia0":                    false,
		"/dev/nvidia-uvm":                 false,
		"/dev/nvidia-caps/nvidia-cap1":    false,
		"/run/nvidia-persistenced/socket": false,
	} {
		assert.Equal(t, want, graphicsFile(file), file)
	}
}

func TestHooksWithoutGraphics(t *testing.T) {
	for _, test := range []struct {
		description string
		args, left  []string // no left: the hook is removed
	}{
		{"another hook", []string{"h", "update-ldcache", "--folder", "/usr/lib"}, []string{"h", "update-ldcache", "--folder", "/usr/lib"}},
		{"a link of CUDA", []string{"h", "create-symlinks", "--link", "libcuda.so.1::/l/libcuda.so"}, []string{"h", "create-symlinks", "--link", "libcuda.so.1::/l/libcuda.so"}},
		{"a link for graphics", []string{"h", "create-symlinks", "--link", "libGLX_nvidia.so.0::/l/libGLX_indirect.so.0"}, nil},
		{"a link below a directory for graphics", []string{"h", "create-symlinks", "--link", "../libnvidia-allocator.so.1::/l/gbm/nvidia-drm_gbm.so"}, nil},
		{"joined", []string{"h", "create-symlinks", "--link=libnvidia-opencl.so.1::/l/libnvidia-opencl.so"}, nil},
		{
			"some", []string{"h", "create-symlinks", "--link", "a.so.1::/l/a.so", "--link=x::/l/libGL.so", "--link", "y::/dev/dri/by-path/gpu", "--link=b.so.1::/l/b.so", "--debug"},
			[]string{"h", "create-symlinks", "--link", "a.so.1::/l/a.so", "--link=b.so.1::/l/b.so", "--debug"},
		},
		{"permissions of a directory", []string{"h", "chmod", "--mode", "755", "--path", "/dev/dri"}, nil},
		{"permissions of another too", []string{"h", "chmod", "--mode", "755", "--path", "/dev/dri", "--path", "/dev/nvidia-caps"}, []string{"h", "chmod", "--mode", "755", "--path", "/dev/nvidia-caps"}},
		{"an option without its value", []string{"h", "create-symlinks", "--link"}, []string{"h", "create-symlinks", "--link"}},
		{"no arguments", []string{}, []string{}},
	} {
		t.Run(test.description, func(t *testing.T) {
			edits := &cdispec.ContainerEdits{Hooks: []*cdispec.Hook{{HookName: "createContainer", Path: "/h", Args: test.args}}}
			withoutGraphics(edits)
			if test.left == nil {
				assert.Empty(t, edits.Hooks)
				return
			}
			assert.Len(t, edits.Hooks, 1)
			assert.ElementsMatch(t, test.left, edits.Hooks[0].Args)
		})
	}
}

func TestDriverCapabilities(t *testing.T) {
	for _, test := range []struct {
		env  []string
		want string
	}{
		{nil, "compute,utility"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES="}, "compute,utility"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES=all"}, "compute,utility,video"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, "utility"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES=video, compute ,graphics"}, "compute,video"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES=graphics,display,ngx,compat32"}, "compute,utility"},
		{[]string{"NVIDIA_DRIVER_CAPABILITIES=utility", "NVIDIA_DRIVER_CAPABILITIES=graphics,video"}, "utility,video"},
	} {
		assert.Equal(t, test.want, driverCapabilities(Container{Env: test.env}), test.env)
	}
}

func TestFeatured(t *testing.T) {
	dir := t.TempDir()
	gds, err := NewRegistry(RegistryConfig{Kind: "nvidia.com/gds", Dirs: []string{dir}})
	require.NoError(t, err)
	featured := DriverFeatures{GPUs: testRegistry(t), Features: []*Registry{gds}}

	_, err = featured.DeviceEdits([]string{gpu0})
	require.ErrorContains(t, err, "nvidia.com/gds is configured")
	require.ErrorContains(t, err, "nvidia-ctk cdi generate --mode=gds")
	_, err = featured.DeviceEdits([]string{gpuX})
	require.ErrorContains(t, err, gpuX)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "gds.yaml"), []byte(`{"cdiVersion":"0.5.0","kind":"nvidia.com/gds","devices":[{"name":"all","containerEdits":{"mounts":[{"hostPath":"/etc/cufile.json","containerPath":"/etc/cufile.json"}]}}]}`), 0o600))
	gds.Refresh()
	gpus, err := testRegistry(t).DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	edits, err := featured.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	assert.Equal(t, gpus.DeviceNodes, edits.DeviceNodes)
	require.Len(t, edits.Mounts, len(gpus.Mounts)+1)
	assert.Equal(t, "/etc/cufile.json", edits.Mounts[len(edits.Mounts)-1].ContainerPath)
}
