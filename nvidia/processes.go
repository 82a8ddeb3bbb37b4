package nvidia

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Process uses a GPU or a MIG device.
type Process struct {
	PID int
	// Bytes of the device's memory, valid if Known.
	Bytes    uint64
	Known    bool
	Graphics bool
}

// Processes returns the processes by UUID of GPU or MIG device, including MPS clients and graphics.
// It returns what could be read, with the errors, and nil if NVML is not open.
func (c *Cache) Processes(ctx context.Context) (map[string][]Process, error) {
	return c.processes(ctx, usable)
}

func (c *Cache) processes(ctx context.Context, of devicesOf) (map[string][]Process, error) {
	return query(ctx, c, "processes", of, func(_ string, dev nvml.Device, label string) ([]Process, bool, error) {
		return c.reader.running(dev, label)
	})
}

// ProcessMemory is a process' memory on a GPU.
type ProcessMemory struct {
	PID   int
	Bytes uint64
}

const notAvailable = ^uint64(0)

// ProcessMemories returns each process' memory by GPU, without GPUs in MIG mode.
func (c *Cache) ProcessMemories(ctx context.Context) (map[string][]ProcessMemory, error) {
	processes, err := c.processes(ctx, wholeGPUs)
	memories := make(map[string][]ProcessMemory, len(processes))
	for uuid, running := range processes {
		memories[uuid] = nil
		for _, p := range running {
			if p.Known {
				memories[uuid] = append(memories[uuid], ProcessMemory{PID: p.PID, Bytes: p.Bytes})
			}
		}
	}
	return memories, err
}

// running merges NVML's lists, which have the same memory for a process.
func (r reader) running(dev nvml.Device, what string) (all []Process, known bool, err error) {
	computing, known := askOptional(&err, what, "nvmlDeviceGetComputeRunningProcesses", dev.GetComputeRunningProcesses)
	if !known {
		return nil, false, err
	}
	var clients []nvml.ProcessInfo
	if r.has("nvmlDeviceGetMPSComputeRunningProcesses") {
		clients, _ = dev.GetMPSComputeRunningProcesses()
	}
	// MIG devices have no graphics.
	drawing, _ := dev.GetGraphicsRunningProcesses()
	seen := map[uint32]bool{}
	for i, list := range [][]nvml.ProcessInfo{computing, clients, drawing} {
		for _, p := range list {
			if seen[p.Pid] {
				continue
			}
			seen[p.Pid] = true
			one := Process{PID: int(p.Pid), Graphics: i == 2, Known: p.UsedGpuMemory != notAvailable}
			if one.Known {
				one.Bytes = p.UsedGpuMemory
			}
			all = append(all, one)
		}
	}
	return all, true, nil
}

// devicesOf selects what [query] reads of a GPU.
type devicesOf func(gpu GPU) (itself, migDevices bool)

// Without MIG, or the MIG devices: what CUDA uses.
func usable(gpu GPU) (itself, migDevices bool) { return !gpu.MIGEnabled, true }

func wholeGPUs(gpu GPU) (itself, migDevices bool) { return !gpu.MIGEnabled, false }

func everything(GPU) (itself, migDevices bool) { return true, true }

// query returns what read returns for each device, by UUID; not the values of devices without known. It joins the errors, each
// of which is of one device. The map is nil if no device was queried.
func query[T any](ctx context.Context, c *Cache, what string, of devicesOf,
	read func(uuid string, dev nvml.Device, label string) (value T, known bool, err error)) (map[string]T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, fmt.Errorf("the GPUs' %s: NVML is not open", what)
	}
	values := map[string]T{}
	var failed error
	look := func(uuid, label string) {
		dev, ret := c.reader.lib.DeviceGetHandleByUUID(uuid)
		err := check(label, "nvmlDeviceGetHandleByUUID", ret)
		if err == nil {
			var value T
			var known bool
			if value, known, err = read(uuid, dev, label); known {
				values[uuid] = value
			}
		}
		failed = errors.Join(failed, err)
	}
	for _, gpu := range c.current.Load().Node.GPUs {
		itself, migDevices := of(gpu)
		if itself {
			look(gpu.UUID, gpu.Label())
		}
		for _, d := range gpu.MIG {
			if migDevices {
				look(d.UUID, "MIG device "+d.UUID)
			}
		}
	}
	return values, failed
}
