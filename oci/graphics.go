package oci

import (
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// graphicsLibraries are for uses without CUDA, which the limiter can't see: OpenCL, OpenGL, EGL, Vulkan, OptiX, NGX,
// VDPAU, and X. Names are without ".so".
var graphicsLibraries = []string{
	"libEGL", "libEGL_nvidia", "libGL", "libGLESv1_CM", "libGLESv1_CM_nvidia", "libGLESv2", "libGLESv2_nvidia",
	"libGLX", "libGLX_indirect", "libGLX_nvidia", "libGLdispatch", "libOpenCL", "libOpenGL", "libglxserver_nvidia",
	"libnvidia-cbl", "libnvidia-egl-gbm", "libnvidia-egl-wayland", "libnvidia-egl-wayland2", "libnvidia-egl-xcb",
	"libnvidia-egl-xlib", "libnvidia-eglcore", "libnvidia-fbc", "libnvidia-glcore", "libnvidia-glsi",
	"libnvidia-glvkspirv", "libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-ifr", "libnvidia-ngx", "libnvidia-opencl",
	"libnvidia-present", "libnvidia-rtcore", "libnvidia-tls", "libnvidia-vksc-core", "libnvidia-vulkan-producer",
	"libnvidia-wayland-client", "libnvoptix", "libvdpau_nvidia", "nvidia-drm_gbm", "nvidia_drv",
}

// graphicsParts are names of files and directories, anywhere in a path.
var graphicsParts = []string{
	"OpenCL", "X11", "egl", "egl_external_platform.d", "egl_vendor.d", "gbm", "glvnd", "nvoptix.bin", "vdpau", "vulkan", "vulkansc", "xorg",
	"dri", "nvidia-modeset", // device nodes
}

func graphicsFile(name string) bool {
	parts := strings.Split(path.Clean(name), "/")
	if slices.ContainsFunc(parts, func(part string) bool { return slices.Contains(graphicsParts, part) }) {
		return true
	}
	stem, _, library := strings.Cut(parts[len(parts)-1], ".so")
	return library && slices.Contains(graphicsLibraries, stem)
}

// withoutGraphics does not remove mounts of whole directories.
func withoutGraphics(visible *cdispec.ContainerEdits) {
	visible.Mounts = slices.DeleteFunc(visible.Mounts, func(m *cdispec.Mount) bool { return graphicsFile(m.ContainerPath) })
	visible.DeviceNodes = slices.DeleteFunc(visible.DeviceNodes, func(d *cdispec.DeviceNode) bool { return graphicsFile(d.Path) })
	visible.Hooks = slices.DeleteFunc(visible.Hooks, func(h *cdispec.Hook) bool {
		var useless bool
		h.Args, useless = withoutGraphicsArgs(h.Args)
		return useless
	})
}

// A hook is useless if only links and paths for graphics were left in it.
func withoutGraphicsArgs(args []string) (left []string, useless bool) {
	kept, removed := false, false
	for i := 0; i < len(args); i++ {
		arg := args[i : i+1]
		option, value, joined := strings.Cut(args[i], "=")
		if option == "--link" || option == "--path" {
			if !joined && i+1 < len(args) {
				i++
				arg, value = args[i-1:i+1], args[i]
			}
			target, link, _ := strings.Cut(value, "::")
			if graphicsFile(target) || graphicsFile(link) {
				removed = true
				continue
			}
			kept = true
		}
		left = append(left, arg...)
	}
	return left, removed && !kept
}

// EnvDriverCapabilities selects the libraries that NVIDIA's runtime injects.
const EnvDriverCapabilities = "NVIDIA_DRIVER_CAPABILITIES"

// driverCapabilities returns the requested ones for CUDA, or a default: unset means all for some images.
func driverCapabilities(c Container) string {
	requested := strings.Split(strings.Join(c.allenv(EnvDriverCapabilities), ","), ",")
	var granted []string
	for _, capability := range []string{"compute", "utility", "video"} {
		if slices.ContainsFunc(requested, func(a string) bool {
			a = strings.TrimSpace(a)
			return a == capability || a == "all"
		}) {
			granted = append(granted, capability)
		}
	}
	if len(granted) == 0 {
		return "compute,utility"
	}
	return strings.Join(granted, ",")
}
