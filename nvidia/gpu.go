package nvidia

import "fmt"

// NUMAUnknown is the NUMANode of a GPU whose node isn't known, or of a machine
// that has only one.
const NUMAUnknown = -1

// Node is what a machine has.
type Node struct {
	// DriverVersion is the kernel driver's, such as "550.54.15".
	DriverVersion string `json:"driverVersion"`
	// CUDAVersion is the newest CUDA that the driver runs, such as "12.4".
	CUDAVersion string `json:"cudaVersion"`
	// GPUs are the GPUs that could be read, by NVML's index.
	GPUs []GPU `json:"gpus"`
	// Faults are the GPUs that could not.
	Faults []Fault `json:"faults,omitempty"`
}

// GPU finds a GPU by its UUID.
func (n Node) GPU(uuid string) (GPU, bool) {
	for _, c := range n.GPUs {
		if c.UUID == uuid {
			return c, true
		}
	}
	return GPU{}, false
}

// GPU is one physical GPU.
type GPU struct {
	// UUID identifies the GPU for good: "GPU-…".
	UUID string `json:"uuid"`
	// Index is NVML's, which may change with the next boot. It is for people.
	Index int `json:"index"`
	// Minor is the number of its device node, /dev/nvidia<Minor>.
	Minor int `json:"minor"`
	// Model is the product's name, such as "NVIDIA H200".
	Model string `json:"model"`
	// MemoryMiB is the GPU's whole memory as NVML gives it (memory.total), in
	// MiB, rounded down.
	MemoryMiB int64 `json:"memoryMiB"`
	// PCIBusID is domain:bus:device.function as NVML writes it,
	// "00000000:3B:00.0"; empty if unknown.
	PCIBusID string `json:"pciBusID,omitempty"`
	// NUMANode is the memory node that the GPU is next to, or NUMAUnknown.
	NUMANode int `json:"numaNode"`
	// ComputeCapability is "major.minor"; empty if unknown.
	ComputeCapability string `json:"computeCapability,omitempty"`
	// MIGCapable says that the GPU has a MIG mode, on or off.
	MIGCapable bool `json:"migCapable,omitempty"`
	// MIGEnabled says that the GPU is in MIG mode: CUDA sees its MIG devices alone.
	MIGEnabled bool `json:"migEnabled,omitempty"`
	// MIG are its MIG devices that could be read, in NVML's order.
	MIG []MIGDevice `json:"mig,omitempty"`
}

// DevicePath is the path of the GPU's device node on the host.
func (c GPU) DevicePath() string {
	return fmt.Sprintf("/dev/nvidia%d", c.Minor)
}

// Fault is a GPU, or a MIG device, that is there and can't be read.
type Fault struct {
	// Index is NVML's, of the GPU.
	Index int `json:"index"`
	// UUID is the GPU's or the MIG device's, empty where not even that could be read.
	UUID string `json:"uuid,omitempty"`
	// GPU is the UUID of a MIG device's GPU; empty of a GPU.
	GPU string `json:"GPU,omitempty"`
	// Err is an *Error that names the call.
	Err error `json:"-"`
	// Message is Err's text, for those who read JSON.
	Message string `json:"message"`
}

// Error says which GPU and why.
func (f Fault) Error() string { return f.Message }

// Unwrap gives the NVML error.
func (f Fault) Unwrap() error { return f.Err }
