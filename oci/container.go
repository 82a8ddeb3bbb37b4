package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/limiter"
)

// Container is what the runtime reports before it creates a container.
type Container struct {
	ID string
	// Env is the final environment, with image, device plugins and pod merged. Names can repeat.
	Env []string
	// RuntimeHandler is the sandbox's RuntimeClass handler; empty: the default.
	RuntimeHandler string
	// Dir is the directory of its claim; only with a grant.
	Dir string
	// TurnID is the claim's; 0: it gets no turns.
	TurnID  limiter.TurnID
	Mounts  []rspec.Mount
	Devices []rspec.LinuxDevice
	// Annotations are the container's own, not its pod's.
	Annotations map[string]string
	// CDIDevices are the qualified CDI names in the request.
	CDIDevices []string
	// NoLimiter: its user disabled the limiter, with the operator's permission ([RequestsNoLimiter]).
	NoLimiter bool
	// InCommon: other containers can have the same claim.
	InCommon bool
	// HighPriority: its work has priority on its GPUs, with the operator's permission.
	HighPriority bool
	DeviceRules  []rspec.LinuxDeviceCgroup
	// Majors are this node's ([HostDriverMajors]). Without them only the names of device nodes count.
	Majors DriverMajors
	// RequestNames are the variables that NVIDIA's runtime prefers to NVIDIA_VISIBLE_DEVICES ([HostRequestNames]).
	RequestNames []string
	// Privileged: it is root of the node and has every device node. No edit can limit it.
	Privileged bool
	// Rootfs is nil if it can't be read: NRI calls before it is mounted.
	Rootfs *Rootfs
}

// ContainerOf reads an OCI spec. RuntimeHandler, Dir and Majors are not in it.
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

// getenv returns the first value, as glibc's getenv does.
func (c Container) getenv(name string) (value string, set bool) {
	if values := c.allenv(name); len(values) > 0 {
		return values[0], true
	}
	return "", false
}

// allenv returns all values: NVIDIA's runtime reads the last.
func (c Container) allenv(name string) []string {
	var values []string
	for _, e := range c.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			values = append(values, v)
		}
	}
	return values
}

func (c Container) checkDir() error {
	if c.Dir == "" {
		return errors.New("its claim has no directory: write the claim to the ledger first")
	}
	if !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir {
		return fmt.Errorf("its claim's directory %q is not an absolute, clean path", c.Dir)
	}
	return nil
}
