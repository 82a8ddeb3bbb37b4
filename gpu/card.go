package gpu

import "fmt"

// NUMAUnknown is the NUMANode of a card whose node isn't known, or of a machine
// that has only one.
const NUMAUnknown = -1

// Node is what a machine has.
type Node struct {
	// DriverVersion is the kernel driver's, such as "550.54.15".
	DriverVersion string `json:"driverVersion"`
	// CUDAVersion is the newest CUDA that the driver runs, such as "12.4".
	CUDAVersion string `json:"cudaVersion"`
	// Cards are the cards that could be read, by NVML's index.
	Cards []Card `json:"cards"`
	// Faults are the cards that could not.
	Faults []Fault `json:"faults,omitempty"`
}

// Card finds a card by its UUID.
func (n Node) Card(uuid string) (Card, bool) {
	for _, c := range n.Cards {
		if c.UUID == uuid {
			return c, true
		}
	}
	return Card{}, false
}

// Card is one physical card.
type Card struct {
	// UUID identifies the card for good: "GPU-…".
	UUID string `json:"uuid"`
	// Index is NVML's, which may change with the next boot. It is for people.
	Index int `json:"index"`
	// Minor is the number of its device node, /dev/nvidia<Minor>.
	Minor int `json:"minor"`
	// Model is the product's name, such as "NVIDIA H200".
	Model string `json:"model"`
	// MemoryMiB is the card's whole memory as NVML gives it (memory.total), in
	// MiB, rounded down.
	MemoryMiB int64 `json:"memoryMiB"`
	// PCIBusID is domain:bus:device.function as NVML writes it,
	// "00000000:3B:00.0"; empty if unknown.
	PCIBusID string `json:"pciBusID,omitempty"`
	// NUMANode is the memory node that the card is next to, or NUMAUnknown.
	NUMANode int `json:"numaNode"`
	// ComputeCapability is "major.minor"; empty if unknown.
	ComputeCapability string `json:"computeCapability,omitempty"`
	// MIGCapable says that the card has a MIG mode, on or off.
	MIGCapable bool `json:"migCapable,omitempty"`
	// MIGEnabled says that the card is in MIG mode: CUDA sees its MIG devices alone.
	MIGEnabled bool `json:"migEnabled,omitempty"`
	// MIG are its MIG devices that could be read, in NVML's order.
	MIG []MIGDevice `json:"mig,omitempty"`
}

// DevicePath is the path of the card's device node on the host.
func (c Card) DevicePath() string {
	return fmt.Sprintf("/dev/nvidia%d", c.Minor)
}

// Fault is a card, or a MIG device, that is there and can't be read.
type Fault struct {
	// Index is NVML's, of the card.
	Index int `json:"index"`
	// UUID is the card's or the MIG device's, empty where not even that could be read.
	UUID string `json:"uuid,omitempty"`
	// Card is the UUID of a MIG device's card; empty of a card.
	Card string `json:"card,omitempty"`
	// Err is an *Error that names the call.
	Err error `json:"-"`
	// Message is Err's text, for those who read JSON.
	Message string `json:"message"`
}

// Error says which card and why.
func (f Fault) Error() string { return f.Message }

// Unwrap gives the NVML error.
func (f Fault) Unwrap() error { return f.Err }
