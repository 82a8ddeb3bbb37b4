package nvidia

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

const bytesPerMiB = 1 << 20

func (r reader) gpu(index int) (GPU, error) {
	gpu := GPU{Index: index, NUMANode: NUMAUnknown}
	what := fmt.Sprintf("GPU %d", index)

	dev, ret := r.lib.DeviceGetHandleByIndex(index)
	if err := check(what, "nvmlDeviceGetHandleByIndex", ret); err != nil {
		return gpu, err
	}
	uuid, ret := dev.GetUUID()
	if err := check(what, "nvmlDeviceGetUUID", ret); err != nil {
		return gpu, err
	}
	if uuid == "" {
		return gpu, fmt.Errorf("%s: nvmlDeviceGetUUID: empty UUID", what)
	}
	gpu.UUID = uuid
	what = gpu.label()

	if gpu.Model, ret = dev.GetName(); ret != nvml.SUCCESS {
		return gpu, check(what, "nvmlDeviceGetName", ret)
	}
	if gpu.Minor, ret = dev.GetMinorNumber(); ret != nvml.SUCCESS {
		return gpu, check(what, "nvmlDeviceGetMinorNumber", ret)
	}
	memory, ret := dev.GetMemoryInfo()
	if err := check(what, "nvmlDeviceGetMemoryInfo", ret); err != nil {
		return gpu, err
	}
	if memory.Total < bytesPerMiB {
		return gpu, fmt.Errorf("%s: nvmlDeviceGetMemoryInfo: %d bytes in total, which can't be shared", what, memory.Total)
	}
	gpu.MemoryMiB = int64(memory.Total / bytesPerMiB)

	return gpu, r.placement(&gpu, dev, what)
}

// placement reads optional facts: they stay unknown if the driver or GPU does not support them.
func (r reader) placement(gpu *GPU, dev nvml.Device, what string) error {
	major, minor, ret := dev.GetCudaComputeCapability()
	if err := optional(what, "nvmlDeviceGetCudaComputeCapability", ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		gpu.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}

	pci, ret := dev.GetPciInfo()
	if err := optional(what, "nvmlDeviceGetPciInfo", ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		gpu.PCIBusID = cString(pci.BusId[:])
	}
	return r.readNUMA(gpu, dev, what)
}

func optional(what, call string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil
	default:
		return check(what, call, ret)
	}
}

func cString(chars []int8) string {
	text := make([]byte, len(chars))
	for i, c := range chars {
		text[i] = byte(c)
	}
	return unix.ByteSliceToString(text)
}
