package nvidia

import (
	"context"

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
	computing, ret := dev.GetComputeRunningProcesses()
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, false, nil
	default:
		return nil, false, check(what, "nvmlDeviceGetComputeRunningProcesses", ret)
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
			one := Process{PID: int(p.Pid), Graphics: i == 2}
			if p.UsedGpuMemory != notAvailable {
				one.Bytes, one.Known = p.UsedGpuMemory, true
			}
			all = append(all, one)
		}
	}
	return all, true, nil
}
