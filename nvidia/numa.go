package nvidia

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// numaSymbol is the NVML function for the NUMA node. Drivers before 515 don't have
// it, and go-nvml's call of a missing function ends the process.
const numaSymbol = "nvmlDeviceGetNumaNodeId"

// hostSysfs is the kernel's view of devices.
func hostSysfs() fs.FS { return os.DirFS("/sys") }

// readNUMA asks the kernel for the NUMA node, and NVML where the kernel doesn't
// have the GPU (the simulated driver's).
func (r reader) readNUMA(gpu *GPU, dev nvml.Device, what string) error {
	if gpu.PCIBusID == "" {
		return nil
	}
	if node, known := r.numa(gpu.PCIBusID); known {
		gpu.NUMANode = node
		return nil
	}
	if !r.has(numaSymbol) {
		return nil
	}
	node, ret := dev.GetNumaNodeId()
	if err := optional(what, numaSymbol, ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS && node >= 0 {
		gpu.NUMANode = node
	}
	return nil
}

// sysfsNUMA reads a PCI device's numa_node, which is -1 on machines with one node.
func sysfsNUMA(sys fs.FS) func(pciBusID string) (node int, known bool) {
	return func(pciBusID string) (int, bool) {
		text, err := fs.ReadFile(sys, path.Join("bus/pci/devices", SysfsBusID(pciBusID), "numa_node"))
		if err != nil {
			return NUMAUnknown, false
		}
		node, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || node < 0 {
			return NUMAUnknown, err == nil
		}
		return node, true
	}
}

// SysfsBusID writes a bus ID as the kernel does: in lower case, and the domain in
// four digits unless it needs more, where NVML writes eight.
func SysfsBusID(pciBusID string) string {
	id := strings.ToLower(pciBusID)
	for strings.HasPrefix(id, "0") && strings.IndexByte(id, ':') > 4 {
		id = id[1:]
	}
	return id
}
