package limiter

import (
	"crypto/sha256"
	"errors"
	"fmt"
)

// Policy says when the core share of a GPU is enforced.
type Policy uint32

// The policies, with GPU_CORE_UTILIZATION_POLICY's meanings.
const (
	PolicyDefault Policy = 0 // only while others use the GPU too
	PolicyForce   Policy = 1 // always
	PolicyDisable Policy = 2 // never
)

// Priority of a container's work on a GPU.
type Priority uint32

// The priorities, with CUDA_TASK_PRIORITY's meanings.
const (
	PriorityHigh Priority = 0
	PriorityLow  Priority = 1
)

// ErrLimits marks limits that can't be: no GPUs, no memory, a GPU twice.
var ErrLimits = errors.New("invalid limits")

// ErrHalfWritten marks a limits file with a record whose writer was killed half-way. Who
// knows the limits fixes it with UpdateLimits.
var ErrHalfWritten = errors.New("its writer was killed half-way")

// Identity tells the limits file of one container from that of another. A container can
// read it and not change it.
type Identity [identitySize]byte

// IdentityOf is the identity of a container by its ID. An empty ID, of a slice that no
// container has, gives the zero one.
func IdentityOf(containerID string) Identity {
	if containerID == "" {
		return Identity{}
	}
	return sha256.Sum256([]byte(containerID))
}

// ErrForeign marks a limits file of another container. UpdateLimits writes the right
// limits into it.
var ErrForeign = errors.New("it is the limits file of another container")

// CheckIdentity fails with ErrForeign for limits that are not the container's.
func (l Limits) CheckIdentity(containerID string) error {
	if l.Identity != IdentityOf(containerID) {
		return ErrForeign
	}
	return nil
}

// Limits is what one container may use.
type Limits struct {
	// Generation rises with each update of a file. It is set by ReadLimits and
	// not written by WriteLimits, which starts at 1.
	Generation uint64
	// Identity is that of the container.
	Identity Identity
	// Oversubscribe allows memory beyond the GPU's, in host memory.
	Oversubscribe bool
	// Devices are the GPUs, 1 to MaxDevices, in an order that the usage file keeps.
	Devices []DeviceLimit
}

// DeviceLimit is what one container may use of one GPU.
type DeviceLimit struct {
	UUID             string // "GPU-…" or "MIG-…"
	MemoryLimitBytes uint64 // more than 0
	CorePercent      uint32 // hard share, 0 to 100; 0: not limited
	CoreSoftPercent  uint32 // ceiling of borrowed time, 0 to 100; 0: none
	Policy           Policy
	Priority         Priority
	PhysicalBytes    uint64 // of the limit, what may lie on the GPU; 0: all of it
	ContextBytes     uint64 // what a context on this model is expected to take; 0: unknown
}

// UUIDs are the GPUs in order, as CreateUsage wants them.
func (l Limits) UUIDs() []string {
	ids := make([]string, 0, len(l.Devices))
	for _, d := range l.Devices {
		ids = append(ids, d.UUID)
	}
	return ids
}

func (l Limits) validate() error {
	if n := len(l.Devices); n < 1 || n > MaxDevices {
		return fmt.Errorf("%w: %d GPUs, not 1 to %d", ErrLimits, n, MaxDevices)
	}
	seen := make(map[[uuidSize]byte]bool, len(l.Devices))
	for i, d := range l.Devices {
		id, _, err := parseUUID(d.UUID)
		if err != nil {
			return fmt.Errorf("%w: GPU %d: %w", ErrLimits, i, err)
		}
		if seen[id] {
			return fmt.Errorf("%w: GPU %d: %s is there twice", ErrLimits, i, d.UUID)
		}
		seen[id] = true
		if err := d.validate(); err != nil {
			return fmt.Errorf("%w: GPU %d (%s): %w", ErrLimits, i, d.UUID, err)
		}
	}
	return nil
}

func (d DeviceLimit) validate() error {
	switch {
	case d.MemoryLimitBytes == 0:
		return errors.New("memory limit is 0")
	case d.MemoryLimitBytes > maxMemoryLimitBytes:
		return fmt.Errorf("memory limit %d is above 2^56", d.MemoryLimitBytes)
	case d.PhysicalBytes > d.MemoryLimitBytes:
		return fmt.Errorf("physical memory %d is above the limit %d", d.PhysicalBytes, d.MemoryLimitBytes)
	case d.CorePercent > maxRecordCorePercent:
		return fmt.Errorf("core percent %d is above 100", d.CorePercent)
	case d.CoreSoftPercent > maxRecordCorePercent:
		return fmt.Errorf("soft core percent %d is above 100", d.CoreSoftPercent)
	case d.Policy > PolicyDisable:
		return fmt.Errorf("policy %d is unknown", d.Policy)
	case d.Priority > PriorityLow:
		return fmt.Errorf("priority %d is unknown", d.Priority)
	}
	return nil
}
