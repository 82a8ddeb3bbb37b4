package nvidia

import (
	"context"
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	memorySymbol   = "nvmlDeviceGetMemoryInfo"
	memoryV2Symbol = "nvmlDeviceGetMemoryInfo_v2"
)

// Telemetry returns what could be read, by UUID, with the errors, and nil if NVML is not open.
func (c *Cache) Telemetry(ctx context.Context) (map[string]Telemetry, error) {
	return query(ctx, c, "telemetry", everything, func(uuid string, dev nvml.Device, label string) (Telemetry, bool, error) {
		t := Telemetry{Taken: c.now()}
		err := c.reader.telemetryMemory(&t, dev, label)
		if _, isGPU := c.Node().GPU(uuid); isGPU {
			err = errors.Join(err, telemetryOfGPU(&t, dev, label))
		}
		return t, true, err
	})
}

func (r reader) telemetryMemory(t *Telemetry, dev nvml.Device, what string) error {
	if r.has(memoryV2Symbol) {
		memory, ret := dev.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS {
			t.MemoryUsedBytes, t.MemoryTotalBytes = &memory.Used, &memory.Total
			return nil
		}
		if err := optional(what, memoryV2Symbol, ret); err != nil {
			return err
		}
	}
	memory, ret := dev.GetMemoryInfo()
	if ret == nvml.SUCCESS {
		t.MemoryUsedBytes, t.MemoryTotalBytes = &memory.Used, &memory.Total
	}
	return optional(what, memorySymbol, ret)
}

func telemetryOfGPU(t *Telemetry, dev nvml.Device, what string) error {
	rates, ret := dev.GetUtilizationRates()
	errs := []error{optional(what, "nvmlDeviceGetUtilizationRates", ret)}
	if ret == nvml.SUCCESS {
		t.UtilizationPercent, t.MemoryControllerPercent = new(min(int(rates.Gpu), 100)), new(min(int(rates.Memory), 100))
	}
	degrees, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU)
	errs = append(errs, optional(what, "nvmlDeviceGetTemperature", ret))
	if ret == nvml.SUCCESS {
		t.TemperatureCelsius = new(int(degrees))
	}
	power, ret := dev.GetPowerUsage()
	errs = append(errs, optional(what, "nvmlDeviceGetPowerUsage", ret))
	if ret == nvml.SUCCESS {
		t.PowerMilliwatts = &power
	}
	return errors.Join(errs...)
}
