package nvidia

import (
	"context"
	"errors"
)

// ProcessMemory is the device memory that one process has of a GPU.
type ProcessMemory struct {
	PID   int // as the agent's PID namespace has it
	Bytes uint64
}

// notAvailable is what NVML says where it doesn't know how much a process has.
const notAvailable = ^uint64(0)

// ProcessMemories says how much memory each process has of each whole GPU, contexts, graphics and
// all that libraries take included. GPUs for which NVML can't say it, such as those in MIG mode,
// are left out.
func (c *Cache) ProcessMemories(ctx context.Context) (map[string][]ProcessMemory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, errors.New("the GPUs' processes: NVML is not open")
	}
	memories := map[string][]ProcessMemory{}
	var failed error
	for _, gpu := range c.current.Load().Node.GPUs {
		if gpu.MIGEnabled {
			continue
		}
		of, known, err := c.processMemories(gpu)
		failed = errors.Join(failed, err)
		if known {
			memories[gpu.UUID] = of
		}
	}
	return memories, failed
}

func (c *Cache) processMemories(gpu GPU) (memories []ProcessMemory, known bool, err error) {
	what := gpu.label()
	dev, ret := c.reader.lib.DeviceGetHandleByUUID(gpu.UUID)
	if err := check(what, "nvmlDeviceGetHandleByUUID", ret); err != nil {
		return nil, false, err
	}
	processes, known, err := c.reader.running(dev, what)
	for _, p := range processes {
		if p.Known {
			memories = append(memories, ProcessMemory{PID: p.PID, Bytes: p.Bytes})
		}
	}
	return memories, known, err
}
