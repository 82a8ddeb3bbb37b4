package nvidia

import (
	"context"
	"errors"

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
// It returns what could be read, with the errors.
func (c *Cache) Processes(ctx context.Context) (map[string][]Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, errors.New("the GPUs' processes: NVML is not open")
	}
	all := map[string][]Process{}
	var failed error
	look := func(uuid, what string) {
		of, known, err := c.processes(uuid, what)
		failed = errors.Join(failed, err)
		if known {
			all[uuid] = of
		}
	}
	for _, gpu := range c.current.Load().Node.GPUs {
		if !gpu.MIGEnabled {
			look(gpu.UUID, gpu.label())
		}
		for _, d := range gpu.MIG {
			look(d.UUID, "MIG device "+d.UUID)
		}
	}
	return all, failed
}

func (c *Cache) processes(uuid, what string) (all []Process, known bool, err error) {
	dev, ret := c.reader.lib.DeviceGetHandleByUUID(uuid)
	if err := check(what, "nvmlDeviceGetHandleByUUID", ret); err != nil {
		return nil, false, err
	}
	return c.reader.running(dev, what)
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
