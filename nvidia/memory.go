package nvidia

import (
	"context"
	"errors"
)

type ProcessMemory struct {
	PID   int
	Bytes uint64
}

const notAvailable = ^uint64(0)

// ProcessMemories returns each process' memory by GPU, without GPUs in MIG mode.
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
