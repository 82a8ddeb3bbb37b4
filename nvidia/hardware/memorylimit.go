package hardware

import "math"

// NoMemoryLimit is the hard limit of a control group without one.
const NoMemoryLimit = uint64(math.MaxUint64)

// MemoryLimit is the driver's limit for a control group on a GPU, in bytes.
type MemoryLimit struct {
	Soft, Hard uint64
	// Used is the memory of the group's processes.
	Used uint64
}

// WithoutMIG returns the UUIDs of the GPUs that are not in MIG mode. The driver has no memory limits for the others.
func (n Node) WithoutMIG() (uuids []string) {
	for _, gpu := range n.GPUs {
		if !gpu.MIGEnabled {
			uuids = append(uuids, gpu.UUID)
		}
	}
	return uuids
}
