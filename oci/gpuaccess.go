package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// nvidiaMajor is the major number of the driver's GPU and control nodes (Linux' devices.txt: 195). nvidia-uvm and
// nvidia-caps have dynamic numbers, see [DriverMajors].
const nvidiaMajor = 195

// nvidiaControlMinor is the lowest minor number of a control node: 254 (modeset), 255 (ctl).
const nvidiaControlMinor = 254

// requestMounts are the directories in which a mount requests a GPU from NVIDIA's runtime
// (accept-nvidia-visible-devices-as-volume-mounts). The last part of the path names the GPU.
var requestMounts = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

// HasGPU reports whether a container has a GPU without an edit of gpuslice, or requests one in a way that no variable
// can undo. Such a container is refused unless it has a grant; then [Edits] makes the check.
//
// It checks device nodes (names and numbers), device cgroup rules that allow the container to make such a node, mounts
// of device nodes, CDI names and annotations, and the mounts that request GPUs from NVIDIA's runtime. It ignores
// /dev/dri, whose nodes can't run CUDA, and a mount of the whole of /dev, which the device cgroup limits.
//
// Device nodes of a privileged container are ignored: it has all of them, and is root of the node.
func HasGPU(c Container) (reason string, has bool) {
	return HasMoreGPUs(c, nil)
}

// HasMoreGPUs is [HasGPU] for a container that has these device nodes from a slice.
func HasMoreGPUs(c Container, granted []rspec.LinuxDevice) (reason string, has bool) {
	if reason, has := c.hasNode(granted, false); has {
		return reason, true
	}
	return requestsFirmly(c, nil)
}

// MountsDriver reports whether a library of the driver is mounted in a container, for example by a CDI device that its
// engine injected.
func MountsDriver(c Container) (reason string, mounts bool) {
	for _, m := range c.Mounts {
		for _, d := range drivers {
			if dest := cleanDestination(m.Destination); d.is(dest) {
				return fmt.Sprintf("the driver's library %s is mounted into it", dest), true
			}
		}
	}
	return "", false
}

// RequestsGPU reports whether a container's environment requests GPUs, or only the driver ("none"), from NVIDIA's
// runtime.
func RequestsGPU(c Container) bool {
	requests := func(name string) bool {
		return slices.ContainsFunc(c.allenv(name), func(v string) bool { return v != "" && v != visibleVoid })
	}
	if slices.ContainsFunc(c.RequestNames, requests) {
		return true
	}
	if _, set := c.getenv(EnvVisibleDevices); !set {
		return legacyImage(c)
	}
	return requests(EnvVisibleDevices)
}

// legacyImage reports whether NVIDIA's runtime reads an unset NVIDIA_VISIBLE_DEVICES as "all": images of the first CUDA
// generation set CUDA_VERSION, but not NVIDIA_REQUIRE_CUDA.
func legacyImage(c Container) bool {
	_, version := c.getenv("CUDA_VERSION")
	require, _ := c.getenv("NVIDIA_REQUIRE_CUDA")
	return version && require == ""
}

// Void returns the edits that cancel the GPU requests in the environment of a container without a grant, or nil.
func Void(c Container) *cdispec.ContainerEdits {
	if !RequestsGPU(c) {
		return nil
	}
	void := &cdispec.ContainerEdits{}
	for _, name := range append([]string{EnvVisibleDevices}, c.requested()...) {
		void.Env = append(void.Env, name+"="+visibleVoid)
	}
	return void
}

// checkUngranted refuses a container that has or requests GPUs beyond its grant, which would have no limits.
func checkUngranted(uuids []string, c Container, visible *cdispec.ContainerEdits) error {
	var granted []rspec.LinuxDevice
	for _, d := range visible.DeviceNodes {
		granted = append(granted, rspec.LinuxDevice{Path: d.Path, Major: d.Major, Minor: d.Minor})
	}
	if reason, has := c.hasNode(granted, true); has {
		return fmt.Errorf("%s, which is not of its grant: remove it from the pod, or the other device plugin that adds it from the node", reason)
	}
	if reason, has := requestsFirmly(c, uuids); has {
		return fmt.Errorf("%s in addition to its grant: a container gets GPUs by its grant only; remove the request", reason)
	}
	return nil
}

// hasNode finds a node of the driver, or a rule that allows the container to make one, beyond the granted nodes. With
// edits, it ignores control nodes, and nodes that the edits replace.
func (c Container) hasNode(granted []rspec.LinuxDevice, edits bool) (reason string, has bool) {
	if c.Privileged {
		return "", false
	}
	for _, d := range c.Devices {
		driver, gpu := c.Majors.reaches(d.Type, d.Major, d.Minor)
		relevant := driver || strings.HasPrefix(path.Clean(d.Path), "/dev/nvidia")
		if edits {
			relevant = gpu || gpuNode(d.Path)
		}
		if relevant && !slices.ContainsFunc(granted, func(g rspec.LinuxDevice) bool {
			return path.Clean(g.Path) == path.Clean(d.Path) && (edits || g.Major == d.Major && g.Minor == d.Minor)
		}) {
			return fmt.Sprintf("it has the device node %s", d.Path), true
		}
	}
	if rule, found := c.Majors.openRule(c.DeviceRules, granted, edits); found {
		return fmt.Sprintf("its device cgroup has the rule %q, by which it can make the node of a GPU", rule), true
	}
	return "", false
}

// requestsFirmly finds requests that no variable can undo. CDI names of granted GPUs are ignored.
func requestsFirmly(c Container, granted []string) (string, bool) {
	for _, m := range c.Mounts {
		dest := cleanDestination(m.Destination)
		if slices.ContainsFunc(requestMounts, func(root string) bool { return within(dest, root) }) {
			return fmt.Sprintf("it requests a GPU from NVIDIA's runtime by the mount %s", m.Destination), true
		}
		if !c.Privileged && (gpuNode(dest) || gpuNode(m.Source)) {
			return fmt.Sprintf("it mounts the device node %s at %s", m.Source, m.Destination), true
		}
	}
	for _, name := range c.CDIDevices {
		if ungrantedCDI(name, granted) {
			return fmt.Sprintf("it requests the CDI device %s", name), true
		}
	}
	for key, value := range c.Annotations {
		if !strings.HasPrefix(key, "cdi.k8s.io/") && !strings.HasPrefix(key, "nvidia.cdi.k8s.io/") {
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			if ungrantedCDI(strings.TrimSpace(name), granted) {
				return fmt.Sprintf("it requests the CDI device %s by the annotation %s", name, key), true
			}
		}
	}
	return "", false
}

// ungrantedCDI reports whether a CDI name is an NVIDIA GPU that is not granted.
func ungrantedCDI(name string, granted []string) bool {
	vendor, _, device, err := parser.ParseQualifiedName(name)
	if err != nil || vendor != "nvidia.com" && !strings.HasSuffix(vendor, ".nvidia.com") {
		return false
	}
	return !slices.Contains(granted, device)
}

// gpuNode reports whether a path is the node of a GPU or of a MIG capability.
func gpuNode(p string) bool {
	p = path.Clean(p)
	if within(p, "/dev/nvidia-caps") {
		return true
	}
	digits, ok := strings.CutPrefix(p, "/dev/nvidia")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
