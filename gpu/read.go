package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const bytesPerMiB = 1 << 20

// card reads the card of an index. On an error the card has what was read before.
func (r reader) card(index int) (Card, error) {
	card := Card{Index: index, NUMANode: NUMAUnknown}
	what := fmt.Sprintf("card %d", index)

	dev, ret := r.lib.DeviceGetHandleByIndex(index)
	if err := check(what, "nvmlDeviceGetHandleByIndex", ret); err != nil {
		return card, err
	}
	uuid, ret := dev.GetUUID()
	if err := check(what, "nvmlDeviceGetUUID", ret); err != nil {
		return card, err
	}
	if uuid == "" {
		return card, fmt.Errorf("%s: nvmlDeviceGetUUID: it has no UUID, which everything is keyed by", what)
	}
	card.UUID = uuid
	what = card.label()

	if card.Model, ret = dev.GetName(); ret != nvml.SUCCESS {
		return card, check(what, "nvmlDeviceGetName", ret)
	}
	if card.Minor, ret = dev.GetMinorNumber(); ret != nvml.SUCCESS {
		return card, check(what, "nvmlDeviceGetMinorNumber", ret)
	}
	memory, ret := dev.GetMemoryInfo()
	if err := check(what, "nvmlDeviceGetMemoryInfo", ret); err != nil {
		return card, err
	}
	if memory.Total < bytesPerMiB {
		return card, fmt.Errorf("%s: nvmlDeviceGetMemoryInfo: %d bytes in all, which can't be shared", what, memory.Total)
	}
	card.MemoryMiB = int64(memory.Total / bytesPerMiB)

	return card, r.placement(&card, dev, what)
}

// placement reads what a card can be shared without: a fact that this driver or
// card doesn't have stays unknown, any other failure is the card's.
func (r reader) placement(card *Card, dev nvml.Device, what string) error {
	major, minor, ret := dev.GetCudaComputeCapability()
	if err := optional(what, "nvmlDeviceGetCudaComputeCapability", ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		card.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}

	pci, ret := dev.GetPciInfo()
	if err := optional(what, "nvmlDeviceGetPciInfo", ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		card.PCIBusID = cString(pci.BusId[:])
	}
	return r.readNUMA(card, dev, what)
}

// optional is check for a fact that a driver or a card may not have.
func optional(what, call string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil
	default:
		return check(what, call, ret)
	}
}

// cString is the text before the first NUL. C's char is signed on some machines.
func cString[T int8 | uint8](chars []T) string {
	var text []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return string(text)
}
