package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/nvidia"
)

// devicePaths returns a GPU's device node; for a MIG device also its two capabilities.
func devicePaths(n nvidia.Node, proc fs.FS, uuid string) ([]string, error) {
	if c, known := n.GPU(uuid); known {
		return []string{c.DevicePath()}, nil
	}
	d, c, known := n.MIGDevice(uuid)
	if !known {
		return nil, fmt.Errorf("GPU %s is not on this node", uuid)
	}
	paths := []string{c.DevicePath()}
	minors, err := capabilityMinors(proc, c, d)
	for _, minor := range minors {
		paths = append(paths, capabilityPath(minor))
	}
	return paths, err
}

func capabilityPath(minor int) string { return fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor) }

// capabilityMinors are of the nodes of a MIG device's GPU instance and compute instance.
func capabilityMinors(proc fs.FS, c nvidia.GPU, d nvidia.MIGDevice) (minors []int, err error) {
	instance := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", c.Minor, d.GPUInstance)
	for _, dir := range []string{instance, fmt.Sprintf("%s/ci%d", instance, d.ComputeInstance)} {
		minor, err := capabilityMinor(proc, path.Join(dir, "access"))
		if err != nil {
			return nil, err
		}
		minors = append(minors, minor)
	}
	return minors, nil
}

// capabilityMinor reads "DeviceFileMinor: 12" (NVIDIA's MIG user guide, "Device Nodes and
// Capabilities").
func capabilityMinor(proc fs.FS, name string) (int, error) {
	data, err := fs.ReadFile(proc, name)
	if err != nil {
		return 0, fmt.Errorf("capability of a MIG device: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		value, found := strings.CutPrefix(line, "DeviceFileMinor:")
		if !found {
			continue
		}
		minor, err := strconv.ParseUint(strings.TrimSpace(value), 10, 20)
		if err != nil {
			return 0, fmt.Errorf("capability of a MIG device: /proc/%s: %w", name, err)
		}
		return int(minor), nil
	}
	return 0, fmt.Errorf("capability of a MIG device: /proc/%s has no DeviceFileMinor", name)
}

// warnDriver logs missing modules and device nodes. They can appear later, so the agent continues.
func warnDriver(ctx context.Context, host doctor.Host, o options, log *slog.Logger) {
	for _, r := range doctor.ExamineDriver(ctx, host, doctor.Options{StateDir: o.StateDir}).Results {
		if r.State != doctor.OK {
			log.Warn("NVIDIA driver installation is incomplete", "check", r.Check, "found", r.Found, "fix", strings.Join(r.Fix, "; "))
		}
	}
}
