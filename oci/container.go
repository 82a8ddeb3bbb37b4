package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// Container is what the runtime reports about a container before it is created.
type Container struct {
	ID string
	// Env is the final environment (image, device plugins and pod spec merged). A name can occur more than once.
	Env []string
	// RuntimeHandler is the RuntimeClass handler of its sandbox. Empty: the runtime's default.
	RuntimeHandler string
	// Dir is the host's directory of its claim. It is needed only with a grant.
	Dir     string
	Mounts  []rspec.Mount
	Devices []rspec.LinuxDevice
	// Annotations are the container's own, not its pod's.
	Annotations map[string]string
	// CDIDevices are the qualified CDI names that others requested.
	CDIDevices []string
	// NoLimiter: its user disabled the limiter, with the operator's permission. See RequestsNoLimiter.
	NoLimiter   bool
	DeviceRules []rspec.LinuxDeviceCgroup
	// Majors are the driver's device numbers on this node ([HostDriverMajors]). Without them only the names of nodes
	// count.
	Majors DriverMajors
	// RequestNames are the variables that NVIDIA's runtime prefers to NVIDIA_VISIBLE_DEVICES ([HostRequestNames]).
	RequestNames []string
	// Privileged: the container is root of the node and has every device node. No edit can limit it.
	Privileged bool
	// Rootfs is nil if the root file system can't be read: NRI calls before it is mounted. See RootfsFacts.
	Rootfs *Rootfs
}

// ContainerOf reads an OCI spec. The caller sets RuntimeHandler, Dir and Majors.
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

// getenv returns the first value of a variable, as glibc's getenv does.
func (c Container) getenv(name string) (value string, set bool) {
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// allenv returns every value of a variable: glibc reads the first, NVIDIA's runtime the last.
func (c Container) allenv(name string) []string {
	var values []string
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			values = append(values, v)
		}
	}
	return values
}

// checkDir refuses a claim directory that can't be the source of a mount.
func (c Container) checkDir() error {
	if c.Dir == "" {
		return errors.New("its claim has no directory: write the claim to the ledger first")
	}
	if !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir {
		return fmt.Errorf("its claim's directory %q is not an absolute, clean path", c.Dir)
	}
	return nil
}
