package gpu

import (
	"context"
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessMemory is the device memory that one process has of a card.
type ProcessMemory struct {
	PID   int // as the agent's PID namespace has it
	Bytes uint64
}

// notAvailable is what NVML says where it doesn't know how much a process has.
const notAvailable = ^uint64(0)

// ProcessMemories says how much memory each process has of each whole card, contexts and
// all that libraries take included. A card that can't tell, as in MIG mode, is not
// listed.
func (c *Cache) ProcessMemories(ctx context.Context) (map[string][]ProcessMemory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, errors.New("the cards' processes: NVML is not open")
	}
	memories := map[string][]ProcessMemory{}
	var failed error
	for _, card := range c.current.Load().Node.Cards {
		if card.MIGEnabled {
			continue
		}
		of, known, err := c.processMemories(card)
		failed = errors.Join(failed, err)
		if known {
			memories[card.UUID] = of
		}
	}
	return memories, failed
}

func (c *Cache) processMemories(card Card) (memories []ProcessMemory, known bool, err error) {
	what := card.label()
	dev, ret := c.reader.lib.DeviceGetHandleByUUID(card.UUID)
	if err := check(what, "nvmlDeviceGetHandleByUUID", ret); err != nil {
		return nil, false, err
	}
	processes, ret := dev.GetComputeRunningProcesses()
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, false, nil
	default:
		return nil, false, check(what, "nvmlDeviceGetComputeRunningProcesses", ret)
	}
	for _, p := range processes {
		if p.UsedGpuMemory != notAvailable {
			memories = append(memories, ProcessMemory{PID: int(p.Pid), Bytes: p.UsedGpuMemory})
		}
	}
	return memories, true, nil
}
