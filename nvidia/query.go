package nvidia

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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
			look(gpu.UUID, gpu.label())
		}
		for _, d := range gpu.MIG {
			if migDevices {
				look(d.UUID, "MIG device "+d.UUID)
			}
		}
	}
	return values, failed
}
