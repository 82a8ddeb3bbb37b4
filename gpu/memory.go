package gpu

import (
	"context"
	"errors"
)

// ProcessMemory is the device memory that one process has of a card.
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
	processes, known, err := c.reader.running(dev, what)
	for _, p := range processes {
		if p.Known {
			memories = append(memories, ProcessMemory{PID: p.PID, Bytes: p.Bytes})
		}
	}
	return memories, known, err
}
