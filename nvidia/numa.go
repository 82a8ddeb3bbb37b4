package nvidia

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// numaSymbol is missing in drivers before 515. go-nvml ends the process when it calls a missing
// function.
const numaSymbol = "nvmlDeviceGetNumaNodeId"

func hostSysfs() fs.FS { return os.DirFS("/sys") }

// readNUMA reads sysfs, or NVML if the kernel does not list the GPU (simulated driver).
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

// SysfsBusID converts NVML's bus ID to sysfs' form: lower case, domain of four digits if possible.
func SysfsBusID(pciBusID string) string {
	id := strings.ToLower(pciBusID)
	for strings.HasPrefix(id, "0") && strings.IndexByte(id, ':') > 4 {
		id = id[1:]
	}
	return id
}
