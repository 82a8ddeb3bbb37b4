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

// nvidiaMajor is the character device major of the driver's GPU and control
// nodes (Linux' devices.txt: 195). Those of nvidia-uvm and nvidia-caps are
// dynamic, see [DriverMajors].
const nvidiaMajor = 195

// nvidiaControlMinor is the first of the minors, 254 (modeset) and 255 (ctl),
// that are no GPU.
const nvidiaControlMinor = 254

// requestMounts are where a mount is a request for a GPU to NVIDIA's runtime
// (accept-nvidia-visible-devices-as-volume-mounts); the last part names it.
var requestMounts = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

// HasGPU says whether a container's facts hold a GPU without any edit of ours,
// or ask for one in a way that no variable can take back, and which. Such a
// container is refused unless it has a grant; with one, [Edits] makes the check.
//
// Looked at are device nodes (by name and by the driver's numbers), rules of the
// device cgroup by which it could make one, mounts of device nodes, CDI names, CDI
// annotations, and the mounts by which NVIDIA's runtime is asked. Not looked at:
// /dev/dri, whose nodes run no CUDA, and a mount of the whole of /dev, which gives no
// access past the device cgroup.
//
// A privileged container's device nodes are no finding: it has all the node's,
// whoever it is (kube-proxy, a CNI), can make them again, and is root of the node
// anyway. What it asked for by name still is.
func HasGPU(c Container) (reason string, holds bool) {
	return HasMoreGPUs(c, nil)
}

// HasMoreGPUs is [HasGPU] of a container that has got device nodes already, which are
// no finding: a slice's.
func HasMoreGPUs(c Container, granted []rspec.LinuxDevice) (reason string, holds bool) {
	if !c.Privileged {
		for _, d := range c.Devices {
			driver, _ := c.Majors.reaches(d.Type, d.Major, d.Minor)
			ours := slices.ContainsFunc(granted, func(g rspec.LinuxDevice) bool { return sameNode(d, g) })
			if (driverNode(d.Path) || driver) && !ours {
				return fmt.Sprintf("it has the device node %s", d.Path), true
			}
		}
		if rule, found := c.Majors.openRule(c.DeviceRules, granted, false); found {
			return ruleReason(rule), true
		}
	}
	return requestsFirmly(c, nil)
}

// ruleReason names a rule of the device cgroup that lets GPUs be opened.
func ruleReason(rule string) string {
	return fmt.Sprintf("its device cgroup has the rule %q, by which it can make the node of a GPU", rule)
}

// MountsDriver says whether a container has a library of the driver's mounted, and which:
// by a CDI device that its engine has put into the spec, for one.
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

// RequestsGPU says whether a container's environment asks NVIDIA's runtime for
// GPUs, or for the driver alone ("none").
func RequestsGPU(c Container) bool {
	asks := func(name string) bool {
		return slices.ContainsFunc(c.allenv(name), func(v string) bool { return v != "" && v != visibleVoid })
	}
	if slices.ContainsFunc(c.RequestNames, asks) {
		return true
	}
	if _, set := c.getenv(EnvVisibleDevices); !set {
		return legacyImage(c)
	}
	return asks(EnvVisibleDevices)
}

// legacyImage says whether NVIDIA's runtime would read an unset
// NVIDIA_VISIBLE_DEVICES as "all": it does for images of the first CUDA
// generation, which set CUDA_VERSION and not NVIDIA_REQUIRE_CUDA.
func legacyImage(c Container) bool {
	_, version := c.getenv("CUDA_VERSION")
	require, _ := c.getenv("NVIDIA_REQUIRE_CUDA")
	return version && require == ""
}

// Void is what a container without a grant gets: where it asks for GPUs, they
// are denied. It is nil where there is nothing to do.
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

// checkUngranted refuses a container with a grant that has, or firmly asks for,
// GPUs beyond it: those would have no limits of their own.
func checkUngranted(uuids []string, c Container, visible *cdispec.ContainerEdits) error {
	if reason, holds := foreignNode(c, visible); holds {
		return fmt.Errorf("%s, which is not of its grant: remove it from the pod, or the other device plugin that adds it from the node", reason)
	}
	if reason, holds := requestsFirmly(c, uuids); holds {
		return fmt.Errorf("%s beside its grant: a container gets GPUs by its grant only; remove the request", reason)
	}
	return nil
}

// foreignNode finds a GPU's node, or a way to make one, that the edits don't add
// themselves.
func foreignNode(c Container, visible *cdispec.ContainerEdits) (string, bool) {
	if c.Privileged {
		return "", false
	}
	added := map[string]bool{}
	var granted []rspec.LinuxDevice
	for _, d := range visible.DeviceNodes {
		added[path.Clean(d.Path)] = true
		granted = append(granted, rspec.LinuxDevice{Path: d.Path, Major: d.Major, Minor: d.Minor})
	}
	for _, d := range c.Devices {
		_, gpu := c.Majors.reaches(d.Type, d.Major, d.Minor)
		if (gpuNode(d.Path) || gpu) && !added[path.Clean(d.Path)] {
			return fmt.Sprintf("it has the device node %s", d.Path), true
		}
	}
	if rule, found := c.Majors.openRule(c.DeviceRules, granted, true); found {
		return ruleReason(rule), true
	}
	return "", false
}

// requestsFirmly finds requests that no variable takes back. CDI names of granted
// GPUs are ours to make, so they are no finding.
func requestsFirmly(c Container, granted []string) (string, bool) {
	for _, m := range c.Mounts {
		dest := cleanDestination(m.Destination)
		if slices.ContainsFunc(requestMounts, func(root string) bool { return within(dest, root) }) {
			return fmt.Sprintf("it asks NVIDIA's runtime for a GPU by the mount %s", m.Destination), true
		}
		if !c.Privileged && (gpuNode(dest) || gpuNode(m.Source)) {
			return fmt.Sprintf("it mounts the device node %s at %s", m.Source, m.Destination), true
		}
	}
	for _, name := range c.CDIDevices {
		if ungrantedCDI(name, granted) {
			return fmt.Sprintf("it asks for the CDI device %s", name), true
		}
	}
	for key, value := range c.Annotations {
		if !strings.HasPrefix(key, "cdi.k8s.io/") && !strings.HasPrefix(key, "nvidia.cdi.k8s.io/") {
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			if ungrantedCDI(strings.TrimSpace(name), granted) {
				return fmt.Sprintf("it asks for the CDI device %s by the annotation %s", name, key), true
			}
		}
	}
	return "", false
}

// ungrantedCDI says whether a CDI name is one of NVIDIA's GPUs that isn't granted.
func ungrantedCDI(name string, granted []string) bool {
	vendor, _, device, err := parser.ParseQualifiedName(name)
	if err != nil || vendor != "nvidia.com" && !strings.HasSuffix(vendor, ".nvidia.com") {
		return false
	}
	return !slices.Contains(granted, device)
}

// driverNode says whether a path is one of the driver's nodes, by its name.
func driverNode(p string) bool {
	return strings.HasPrefix(path.Clean(p), "/dev/nvidia")
}

// gpuNode says whether a path is a GPU's node or a MIG capability's, by name.
func gpuNode(p string) bool {
	p = path.Clean(p)
	if within(p, "/dev/nvidia-caps") {
		return true
	}
	digits, ok := strings.CutPrefix(p, "/dev/nvidia")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
