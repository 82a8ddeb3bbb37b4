package nvidia

import "fmt"

// NUMAUnknown is the NUMANode of a GPU if the node is unknown or the machine has only one.
const NUMAUnknown = -1

// Node is a machine with its GPUs.
type Node struct {
	// DriverVersion is the kernel driver's version, such as "550.54.15".
	DriverVersion string `json:"driverVersion"`
	// CUDAVersion is the newest CUDA that the driver supports, such as "12.4".
	CUDAVersion string  `json:"cudaVersion"`
	GPUs        []GPU   `json:"gpus"`
	Faults      []Fault `json:"faults,omitempty"`
}

func (n Node) GPU(uuid string) (GPU, bool) {
	for _, c := range n.GPUs {
		if c.UUID == uuid {
			return c, true
		}
	}
	return GPU{}, false
}

type GPU struct {
	// UUID is "GPU-…". It never changes.
	UUID string `json:"uuid"`
	// Index is NVML's. It can change at a reboot: do not use it as a key.
	Index int `json:"index"`
	// Minor is the number of the device node /dev/nvidia<Minor>.
	Minor int    `json:"minor"`
	Model string `json:"model"`
	// MemoryMiB is NVML's memory.total in MiB, rounded down.
	MemoryMiB int64 `json:"memoryMiB"`
	// PCIBusID is domain:bus:device.function in NVML's form, "00000000:3B:00.0"; can be empty.
	PCIBusID string `json:"pciBusID,omitempty"`
	// NUMANode is the nearest NUMA node, or NUMAUnknown.
	NUMANode int `json:"numaNode"`
	// ComputeCapability is "major.minor"; can be empty.
	ComputeCapability string `json:"computeCapability,omitempty"`
	MIGCapable        bool   `json:"migCapable,omitempty"`
	// MIGEnabled is true in MIG mode: CUDA then uses the MIG devices only.
	MIGEnabled bool        `json:"migEnabled,omitempty"`
	MIG        []MIGDevice `json:"mig,omitempty"`
}

// DevicePath is /dev/nvidia<Minor>.
func (c GPU) DevicePath() string {
	return fmt.Sprintf("/dev/nvidia%d", c.Minor)
}

// Fault is a GPU or a MIG device that can't be read.
type Fault struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid,omitempty"`
	// GPU is the UUID of a MIG device's GPU; empty for a GPU.
	GPU     string `json:"gpu,omitempty"`
	Err     error  `json:"-"`
	Message string `json:"message"`
}

// Error is the message.
func (f Fault) Error() string { return f.Message }

func (f Fault) Unwrap() error { return f.Err }
