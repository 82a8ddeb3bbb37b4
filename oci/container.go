package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// Container is what is known of a container before it is created: the facts that
// the runtime tells, with nothing of ours in them yet.
type Container struct {
	// ID is the runtime's identifier of the container.
	ID string
	// Env is the final environment (image, device plugins and pod spec merged by
	// the runtime), each "NAME=value". A name may come more than once.
	Env []string
	// RuntimeHandler is the RuntimeClass handler of its sandbox; empty is the
	// runtime's default.
	RuntimeHandler string
	// Dir is the host's directory of its claim, which holds its limits and usage
	// files. It is needed for a container with a grant only.
	Dir string
	// Mounts are its mounts, as an OCI spec has them.
	Mounts []rspec.Mount
	// Devices are its device nodes, as an OCI spec has them.
	Devices []rspec.LinuxDevice
	// Annotations are the container's own annotations (not its pod's).
	Annotations map[string]string
	// CDIDevices are the qualified CDI names that were asked for by others.
	CDIDevices []string
	// NoLimiter says that its user switched the limiter off, which the operator
	// lets him do: it gets its GPUs without the library. See RequestsNoLimiter.
	NoLimiter bool
	// DeviceRules are its device cgroup's rules, as an OCI spec has them.
	DeviceRules []rspec.LinuxDeviceCgroup
	// Majors are the numbers that the driver's nodes have on this node; see
	// [HostDriverMajors]. Without them they are known by their names.
	Majors DriverMajors
	// RequestNames are the variables that NVIDIA's runtime prefers to NVIDIA_VISIBLE_DEVICES;
	// see [HostRequestNames].
	RequestNames []string
	// Privileged says that the container is root of the node: it has every device
	// node, and no edit of ours can hold it.
	Privileged bool
	// Rootfs is what its root file system has, or nil where nobody can look (NRI asks
	// before it is there). See RootfsFacts.
	Rootfs *Rootfs
}

// ContainerOf reads the facts out of an OCI spec. The spec knows neither the
// runtime handler nor the claim's directory, nor the driver's numbers.
func ContainerOf(id string, spec *rspec.Spec) Container {
	c := Container{ID: id, Mounts: spec.Mounts, Annotations: spec.Annotations}
	if spec.Process != nil {
		c.Env = spec.Process.Env
	}
	if spec.Linux != nil {
		c.Devices = spec.Linux.Devices
		if spec.Linux.Resources != nil {
			c.DeviceRules = spec.Linux.Resources.Devices
		}
		c.Privileged = privileged(spec)
	}
	return c
}

// getenv returns the value that a variable has for a process, as glibc's getenv
// finds it: the first one of that name.
func (c Container) getenv(name string) (value string, set bool) {
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// allenv returns every value that a variable has: readers differ on which of
// several counts (glibc the first, NVIDIA's runtime the last).
func (c Container) allenv(name string) []string {
	var values []string
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			values = append(values, v)
		}
	}
	return values
}

// checkDir refuses a claim directory that can't be a mount's source.
func (c Container) checkDir() error {
	if c.Dir == "" {
		return errors.New("its claim has no directory: book the grant in the ledger first")
	}
	if !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir {
		return fmt.Errorf("its claim's directory %q is not an absolute, clean path", c.Dir)
	}
	return nil
}
