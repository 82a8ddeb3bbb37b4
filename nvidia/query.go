package nvidia

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// devicesOf selects what [Cache.query] reads of a GPU.
type devicesOf func(gpu GPU) (itself, migDevices bool)

// Without MIG, or the MIG devices: what CUDA uses.
func usable(gpu GPU) (itself, migDevices bool) { return !gpu.MIGEnabled, true }

func wholeGPUs(gpu GPU) (itself, migDevices bool) { return !gpu.MIGEnabled, false }

func everything(GPU) (itself, migDevices bool) { return true, true }

// query calls read for each device. It joins the errors, each of which is of one device.
func (c *Cache) query(ctx context.Context, what string, of devicesOf, read func(uuid string, dev nvml.Device, label string) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.open {
		return fmt.Errorf("the GPUs' %s: NVML is not open", what)
	}
	var failed error
	look := func(uuid, label string) {
		dev, ret := c.reader.lib.DeviceGetHandleByUUID(uuid)
		err := check(label, "nvmlDeviceGetHandleByUUID", ret)
		if err == nil {
			err = read(uuid, dev, label)
		}
		failed = errors.Join(failed, err)
	}
	for _, gpu := range c.current.Load().Node.GPUs {
		itself, migDevices := of(gpu)
		if itself {
			look(gpu.UUID, gpu.label())
		}
		for _, d := range gpu.MIG {
			if migDevices {
				look(d.UUID, "MIG device "+d.UUID)
			}
		}
	}
	return failed
}
