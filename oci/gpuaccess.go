package oci

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

// nvidiaMajor is the major number of the driver's GPU and control nodes (Linux' devices.txt). [DriverMajors] has the
// others.
const nvidiaMajor = 195

// nvidiaControlMinor is the lowest minor number of a control node: 254 (modeset), 255 (ctl).
const nvidiaControlMinor = 254

// A mount in requestMounts requests a GPU from NVIDIA's runtime (accept-nvidia-visible-devices-as-volume-mounts).
var requestMounts = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

// HasGPU reports whether a container has a GPU without edits, or requests one in a way that no variable can
// undo: by device nodes, device cgroup rules, mounts, CDI names or annotations. /dev/dri is ignored, because
// its nodes can't run CUDA, and a mount of all of /dev, because the device cgroup limits it.
func HasGPU(c Container) (reason string, has bool) {
	return HasMoreGPUs(c, nil)
}

// HasMoreGPUs is [HasGPU] for a container with these nodes from a slice.
func HasMoreGPUs(c Container, granted []rspec.LinuxDevice) (reason string, has bool) {
	if reason, has := c.hasNode(granted, false); has {
		return reason, true
	}
	return requestsFirmly(c, nil)
}

// MountsDriver reports whether a driver library is mounted, for example by an engine's CDI device.
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

// RequestsGPU reports whether the environment requests GPUs, or the driver ("none"), from NVIDIA's runtime.
func RequestsGPU(c Container) bool {
	requests := func(name string) bool {
		return slices.ContainsFunc(c.allenv(name), func(v string) bool { return v != "" && v != api.VisibleVoid })
	}
	if slices.ContainsFunc(c.RequestNames, requests) {
		return true
	}
	if _, set := c.getenv(api.EnvVisibleDevices); !set {
		return legacyImage(c)
	}
	return requests(api.EnvVisibleDevices)
}

// legacyImage reports whether NVIDIA's runtime reads an unset NVIDIA_VISIBLE_DEVICES as "all": the first CUDA images
// lack NVIDIA_REQUIRE_CUDA.
func legacyImage(c Container) bool {
	_, version := c.getenv("CUDA_VERSION")
	require, _ := c.getenv("NVIDIA_REQUIRE_CUDA")
	return version && require == ""
}

// Void returns edits that cancel the GPU requests of an environment, or nil.
func Void(c Container) *cdispec.ContainerEdits {
	if !RequestsGPU(c) {
		return nil
	}
	void := &cdispec.ContainerEdits{}
	for _, name := range append([]string{api.EnvVisibleDevices}, c.requested()...) {
		void.Env = append(void.Env, name+"="+api.VisibleVoid)
	}
	return void
}

// checkUngranted refuses GPUs beyond the grant.
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

// hasNode finds a node of the driver, or a rule to make one, beyond the granted. If edits follow, it ignores control
// nodes and replaced nodes.
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

// requestsFirmly finds requests that no variable can undo.
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

func ungrantedCDI(name string, granted []string) bool {
	vendor, _, device, err := parser.ParseQualifiedName(name)
	if err != nil || vendor != "nvidia.com" && !strings.HasSuffix(vendor, ".nvidia.com") {
		return false
	}
	return !slices.Contains(granted, device)
}

// gpuNode: of a GPU or a MIG capability.
func gpuNode(p string) bool {
	p = path.Clean(p)
	if within(p, "/dev/nvidia-caps") {
		return true
	}
	digits, ok := strings.CutPrefix(p, "/dev/nvidia")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// ToolkitConfig is NVIDIA's container toolkit's.
const ToolkitConfig = "/etc/nvidia-container-runtime/config.toml"

// defaultRequestName is in NVIDIA's documentation of swarm-resource. It is always included, because an agent in a
// container can't read the configuration.
const defaultRequestName = "DOCKER_RESOURCE_GPU"

// HostRequestNames returns the variables that NVIDIA's runtime prefers to NVIDIA_VISIBLE_DEVICES on this node.
func HostRequestNames() []string {
	data, _ := os.ReadFile(ToolkitConfig) // often absent
	return append(UnknownRequestNames(string(data)), defaultRequestName)
}

// UnknownRequestNames returns names that an agent without access to the configuration does not void.
func UnknownRequestNames(config string) []string {
	return slices.DeleteFunc(RequestNames(config), func(name string) bool { return name == defaultRequestName })
}

// RequestNames reads swarm-resource from the toolkit's configuration. It uses no TOML library, because the runtime
// wrapper starts several times for each container.
func RequestNames(config string) (names []string) {
	for line := range strings.Lines(config) {
		key, value, is := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(key, "[") {
			break // the first table
		}
		if key = strings.Trim(strings.TrimSpace(key), `"'`); !is || key != "swarm-resource" {
			continue
		}
		value = strings.TrimSpace(value)
		if value == "" || value[0] != '"' && value[0] != '\'' {
			continue
		}
		value, _, _ = strings.Cut(value[1:], value[:1])
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !strings.Contains(name, "=") && name != api.EnvVisibleDevices {
				names = append(names, name)
			}
		}
	}
	return names
}

func (c Container) requested() (names []string) {
	for _, name := range c.RequestNames {
		if _, set := c.getenv(name); set {
			names = append(names, name)
		}
	}
	return names
}
