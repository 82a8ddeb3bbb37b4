package oci

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// DriverMajors are device numbers that Linux assigns when the driver's modules are loaded. See also nvidiaMajor.
type DriverMajors struct {
	// Caps are of nvidia-caps, which give access to MIG devices.
	Caps []int64
	// Other are of nvidia-uvm and similar, useless without a GPU.
	Other []int64
}

// HostDriverMajors reads /proc/devices.
func HostDriverMajors() DriverMajors {
	text, _ := rawfile.Read("/proc/devices")
	return driverMajors(string(text))
}

// builtinMajors are Linux' own (devices.txt: mem, tty, console, misc, pts).
var builtinMajors = []int64{1, 4, 5, 10, 136}

// HostDriverMajorsFor reads them only for a container with devices, or rules of devices, to which they matter.
func HostDriverMajorsFor(c Container) DriverMajors {
	if !needsMajors(c) {
		return DriverMajors{}
	}
	return HostDriverMajors()
}

func needsMajors(c Container) bool {
	others := func(major int64) bool { return !slices.Contains(builtinMajors, major) }
	return slices.ContainsFunc(c.Devices, func(d rspec.LinuxDevice) bool { return others(d.Major) }) ||
		slices.ContainsFunc(c.DeviceRules, func(r rspec.LinuxDeviceCgroup) bool { return !anyNumber(r.Major) && others(*r.Major) })
}

// driverMajors reads "<major> <name>" lines of character devices, then block devices (proc(5)).
func driverMajors(text string) (m DriverMajors) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Block") {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "nvidia") {
			continue
		}
		major, err := strconv.ParseInt(fields[0], 10, 64)
		switch {
		case err != nil || major == nvidiaMajor:
		case strings.HasPrefix(fields[1], "nvidia-caps"):
			m.Caps = append(m.Caps, major)
		default:
			m.Other = append(m.Other, major)
		}
	}
	return m
}

// reaches reports whether a node is the driver's, or a GPU's, by its numbers.
func (m DriverMajors) reaches(kind string, major, minor int64) (driver, gpu bool) {
	if kind != "c" && kind != "u" {
		return false, false
	}
	gpu = major == nvidiaMajor && minor < nvidiaControlMinor || slices.Contains(m.Caps, major)
	return gpu || major == nvidiaMajor || slices.Contains(m.Other, major), gpu
}

// openRule finds a rule that lets a container open nodes of the driver (gpusOnly: of GPUs) beyond the granted
// ones: with docker, containers can make such nodes. Only a denial of everything cancels earlier rules,
// because runtimes differ on others.
func (m DriverMajors) openRule(rules []rspec.LinuxDeviceCgroup, granted []rspec.LinuxDevice, gpusOnly bool) (rule string, found bool) {
	for _, r := range rules {
		switch {
		case !r.Allow && wildRule(r):
			found = false
		case r.Allow && !found && m.opens(r, gpusOnly) && !isGranted(r, granted):
			rule, found = ruleText(r), true
		}
	}
	return rule, found
}

func (m DriverMajors) opens(r rspec.LinuxDeviceCgroup, gpusOnly bool) bool {
	if r.Type == "" || r.Type == "a" {
		return true // whatever its numbers and its access, to cgroup v1 and runc
	}
	if r.Type != "c" && r.Type != "u" || r.Access != "" && !strings.ContainsAny(r.Access, "rw") {
		return false
	}
	if anyNumber(r.Major) {
		return true
	}
	minor := int64(0)
	if !anyNumber(r.Minor) {
		minor = *r.Minor
	}
	driver, gpu := m.reaches("c", *r.Major, minor)
	return gpu || driver && !gpusOnly
}

func isGranted(r rspec.LinuxDeviceCgroup, granted []rspec.LinuxDevice) bool {
	return r.Major != nil && r.Minor != nil && slices.ContainsFunc(granted, func(d rspec.LinuxDevice) bool {
		return *r.Major == d.Major && *r.Minor == d.Minor
	})
}

// ruleText writes a rule as for docker's --device-cgroup-rule.
func ruleText(r rspec.LinuxDeviceCgroup) string {
	number := func(n *int64) string {
		if anyNumber(n) {
			return "*"
		}
		return strconv.FormatInt(*n, 10)
	}
	return fmt.Sprintf("%s %s:%s %s", cmp.Or(r.Type, "a"), number(r.Major), number(r.Minor), cmp.Or(r.Access, "rwm"))
}

// AllowsAllDevices reports whether rules allow every device. With NRI that means privileged: a pod can't set rules,
// but docker's users can.
func AllowsAllDevices(rules []rspec.LinuxDeviceCgroup) bool {
	all := false
	for _, r := range rules {
		if wildRule(r) {
			all = r.Allow
		}
	}
	return all
}

// privileged requires CAP_SYS_ADMIN too, because of --device-cgroup-rule 'a *:* rwm'.
func privileged(spec *rspec.Spec) bool {
	return spec.Linux != nil && spec.Linux.Resources != nil && AllowsAllDevices(spec.Linux.Resources.Devices) && hasAdmin(spec)
}

func hasAdmin(spec *rspec.Spec) bool {
	return spec.Process != nil && spec.Process.Capabilities != nil &&
		slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
}

// AdministersNode reports CAP_SYS_ADMIN outside of a user namespace.
func AdministersNode(spec *rspec.Spec) bool {
	return hasAdmin(spec) && (spec.Linux == nil ||
		!slices.ContainsFunc(spec.Linux.Namespaces, func(n rspec.LinuxNamespace) bool { return n.Type == rspec.UserNamespace }))
}

// wildRule: every device and every access.
func wildRule(r rspec.LinuxDeviceCgroup) bool {
	return (r.Type == "" || r.Type == "a") && anyNumber(r.Major) && anyNumber(r.Minor) &&
		(r.Access == "" || strings.Trim("rwm", r.Access) == "")
}

func anyNumber(n *int64) bool { return n == nil || *n == -1 }
