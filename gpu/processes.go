package gpu

import (
	"context"
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Process is one that has a card, or a MIG device, open.
type Process struct {
	PID int // as the agent's PID namespace has it
	// Bytes are what it has of the device's memory, if Known: NVML doesn't always say.
	Bytes uint64
	Known bool
}

// Processes says who has each card and each MIG device open, by the devices' UUIDs.
// Whoever draws and does not compute is listed too, its memory unknown. A device that
// can't tell is not in the answer; one that fails is in the error, beside the others.
func (c *Cache) Processes(ctx context.Context) (map[string][]Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, errors.New("the cards' processes: NVML is not open")
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
	for _, card := range c.current.Load().Node.Cards {
		if !card.MIGEnabled {
			look(card.UUID, card.label())
		}
		for _, d := range card.MIG {
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
	computing, ret := dev.GetComputeRunningProcesses()
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, false, nil
	default:
		return nil, false, check(what, "nvmlDeviceGetComputeRunningProcesses", ret)
	}
	seen := make(map[uint32]bool, len(computing))
	for _, p := range computing {
		seen[p.Pid] = true
		one := Process{PID: int(p.Pid)}
		if p.UsedGpuMemory != notAvailable {
			one.Bytes, one.Known = p.UsedGpuMemory, true
		}
		all = append(all, one)
	}
	drawing, ret := dev.GetGraphicsRunningProcesses()
	if ret != nvml.SUCCESS {
		return all, true, nil // of MIG devices nobody can draw
	}
	for _, p := range drawing {
		if !seen[p.Pid] {
			all = append(all, Process{PID: int(p.Pid)})
		}
	}
	return all, true, nil
}
