// Package hardware describes a node's GPUs, MIG devices and their connections as NVML reports them. It reads nothing, so
// that programs without NVML have the same types.
package hardware

import (
	"fmt"
	"strings"
)

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
	// Profiles is what can be made of a GPU in MIG mode, and Instances what is made; only read where MIG devices are made on
	// request.
	Profiles  []MIGProfile  `json:"-"`
	Instances []GPUInstance `json:"-"`
}

// MIGProfile is a kind of GPU instance.
type MIGProfile struct {
	// ID is NVML's number of the profile, Name nvidia-smi's name ("1g.10gb+me").
	ID   int
	Name string
	// MemoryMiB is what an instance has, Slices its compute slices, Most the instances that a GPU can have.
	MemoryMiB int64
	Slices    int
	Most      int
	Places    []Place
}

// Place is where a GPU instance lies, in memory slices.
type Place struct{ Start, Size int }

// Overlaps reports whether two places have a memory slice in common.
func (p Place) Overlaps(o Place) bool { return p.Start < o.Start+o.Size && o.Start < p.Start+p.Size }

// GPUInstance is one that exists. With a compute instance it is a MIG device.
type GPUInstance struct {
	ID, Profile int
	Place       Place
	Compute     []ComputeInstance
}

// ComputeInstance has the UUID of its MIG device; "" if it is not known.
type ComputeInstance struct {
	ID   int
	UUID string
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

// MIGDevice is a compute instance of a GPU in MIG mode, which CUDA uses as a device.
type MIGDevice struct {
	// UUID is "MIG-…", valid until the device is removed.
	UUID string `json:"uuid"`
	GPU  string `json:"gpu"`
	// Profile is nvidia-smi's name of its kind: "1g.10gb", "1g.10gb+me", "1c.2g.20gb".
	Profile string `json:"profile"`
	// MemoryMiB is in MiB, rounded down. Compute instances of one GPU instance share memory: each
	// reports all of it.
	MemoryMiB       int64 `json:"memoryMiB"`
	GPUInstance     int   `json:"gpuInstance"`
	ComputeInstance int   `json:"computeInstance"`
	// Slices are compute slices, of the seven that most GPUs have; 0 if unknown.
	Slices int `json:"slices,omitempty"`
}

// ResourceName is the last part of the resource name with the strategy mixed, "mig-1g.10gb". A "+",
// which is not allowed in such names, becomes ".".
func (d MIGDevice) ResourceName() string { return "mig-" + strings.ReplaceAll(d.Profile, "+", ".") }

func (n Node) MIGDevice(uuid string) (MIGDevice, GPU, bool) {
	for _, c := range n.GPUs {
		for _, d := range c.MIG {
			if d.UUID == uuid {
				return d, c, true
			}
		}
	}
	return MIGDevice{}, GPU{}, false
}

// contextMiB is the memory of a CUDA context in MiB, by a word in the model's name: typical values
// of CUDA 12. They vary with driver and program.
var contextMiB = []struct {
	word string
	mib  int64
}{
	{"H200", 520},
	{"H100", 520},
	{"A100", 420},
	{"T4", 105},
}

// otherContextMiB is for other models. It is high because memory that is not counted is taken from
// other containers.
const otherContextMiB = 520

// ContextMiB is the expected memory of one CUDA context, in MiB.
func (c GPU) ContextMiB() int64 {
	for _, m := range contextMiB {
		if strings.Contains(c.Model, m.word) {
			return m.mib
		}
	}
	return otherContextMiB
}

// Label names the GPU in messages.
func (c GPU) Label() string { return fmt.Sprintf("GPU %d (%s)", c.Index, c.UUID) }

// SysfsBusID converts NVML's bus ID to sysfs' form: lower case, domain of four digits if possible.
func SysfsBusID(pciBusID string) string {
	id := strings.ToLower(pciBusID)
	for strings.HasPrefix(id, "0") && strings.IndexByte(id, ':') > 4 {
		id = id[1:]
	}
	return id
}
