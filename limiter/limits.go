package limiter

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"unsafe"
)

// Policy is when the core share of a GPU is enforced.
type Policy uint32

// The values of GPU_CORE_UTILIZATION_POLICY.
const (
	PolicyDefault Policy = 0 // only while others use the GPU too
	PolicyForce   Policy = 1 // always
	PolicyDisable Policy = 2 // never
)

// Priority is the priority of a container's work on a GPU.
type Priority uint32

// The values of CUDA_TASK_PRIORITY.
const (
	PriorityHigh Priority = 0
	PriorityLow  Priority = 1
)

var ErrLimits = errors.New("invalid limits")

// ErrHalfWritten marks a limits file with an incomplete record. UpdateLimits fixes it.
var ErrHalfWritten = errors.New("incomplete record: its writer was killed")

// Identity distinguishes the limits files of containers.
type Identity [sha256.Size]byte

// IdentityOf returns a container's identity. That of an empty ID (an unused slice) is zero.
func IdentityOf(containerID string) Identity {
	if containerID == "" {
		return Identity{}
	}
	return sha256.Sum256([]byte(containerID))
}

// ErrForeign marks the limits file of another container. UpdateLimits fixes it.
var ErrForeign = errors.New("limits file of another container")

type Limits struct {
	// Generation increases with each update. WriteLimits starts at 1.
	Generation uint64
	Identity   Identity
	// TurnID names the container's turn files; 0: it has none. It does not change.
	TurnID TurnID
	// Oversubscribe allows more memory, in host memory.
	Oversubscribe bool
	// Devices are 1 to MaxDevices GPUs. The usage file has the same order.
	Devices []DeviceLimit
}

// DeviceLimit are a container's limits on one GPU.
type DeviceLimit struct {
	UUID             string // "GPU-…" or "MIG-…"
	MemoryLimitBytes uint64 // more than 0
	CorePercent      uint32 // hard share, 0 to 100; 0: not limited
	CoreSoftPercent  uint32 // ceiling with borrowed time, 0 to 100; 0: none
	Policy           Policy
	Priority         Priority
	PhysicalBytes    uint64 // part of the limit that may be on the GPU; 0: all
	ContextBytes     uint64 // expected size of a context; 0: unknown
	Pages            Pages
	// Unmeasured: no agent measures residue on this node, so each process of the container measures its own. It ends with
	// the first UpdateResidue.
	Unmeasured bool
	// MeasureFirst: each process measures its own residue before its first allocation in a context, whether an agent
	// measures or not: the agent sees a context that is larger than ContextBytes only after seconds.
	MeasureFirst bool
}

// Pages is how a driver takes memory of a GPU: in whole pages, but allocations of up to SmallKiB share pages. Zero: to the
// byte.
type Pages struct{ KiB, SmallKiB uint16 }

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
			return fmt.Errorf("%w: GPU %d: duplicate %s", ErrLimits, i, d.UUID)
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
	case d.Pages.SmallKiB > d.Pages.KiB:
		return fmt.Errorf("small allocations of %d KiB are larger than a page of %d KiB", d.Pages.SmallKiB, d.Pages.KiB)
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

func encodeLimits(l Limits, generation uint64) (*limitsFile, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	file := &limitsFile{limitsHeader: limitsHeader{
		layout: layoutNumber, headerBytes: uint32(unsafe.Sizeof(limitsHeader{})), recordBytes: uint32(unsafe.Sizeof(limitsRecord{})),
		recordCount: uint32(len(l.Devices)), generation: generation, identity: l.Identity,
		turnID: uint64(l.TurnID),
	}}
	copy(file.magic[:], limitsMagic)
	if l.Oversubscribe {
		file.flags = flagOversubscribe
	}
	file.crc32 = file.checksum()
	for i, d := range l.Devices {
		id, mig, err := parseUUID(d.UUID)
		if err != nil {
			return nil, err
		}
		r := &file.records[i]
		*r = limitsRecord{
			uuid: id, memoryLimitBytes: d.MemoryLimitBytes, corePercent: d.CorePercent, coreSoftPercent: d.CoreSoftPercent,
			policy: uint32(d.Policy), priority: uint32(d.Priority), contextBytes: d.ContextBytes, physicalBytes: d.PhysicalBytes,
			pageKiB: d.Pages.KiB, smallKiB: d.Pages.SmallKiB,
		}
		if mig {
			r.flags = recordFlagMIG
		}
		if d.Unmeasured {
			r.flags |= recordFlagUnmeasured
		}
		if d.MeasureFirst {
			r.flags |= recordFlagFirst
		}
		copy(r.name[:], formatUUID(id, mig))
		r.crc32 = r.checksum()
	}
	return file, nil
}

// decodeLimits makes the same checks as the library.
func decodeLimits(content []byte) (*limitsFile, Limits, error) {
	if len(content) != limitsSize {
		return nil, Limits{}, fmt.Errorf("%d bytes long, not %d", len(content), limitsSize)
	}
	file := (*limitsFile)(unsafe.Pointer(&content[0]))
	if string(file.magic[:]) != limitsMagic {
		return nil, Limits{}, fmt.Errorf("magic number %q, not %q", file.magic, limitsMagic)
	}
	for _, f := range []struct {
		name      string
		got, want uint32
	}{
		{"layout", file.layout, layoutNumber},
		{"header_bytes", file.headerBytes, uint32(unsafe.Sizeof(limitsHeader{}))},
		{"record_bytes", file.recordBytes, uint32(unsafe.Sizeof(limitsRecord{}))},
		{"crc32", file.crc32, file.checksum()},
	} {
		if f.got != f.want {
			return nil, Limits{}, fmt.Errorf("header %s is %#x, not %#x", f.name, f.got, f.want)
		}
	}
	if file.recordCount < 1 || file.recordCount > MaxDevices {
		return nil, Limits{}, fmt.Errorf("header record_count is %d, not 1 to %d", file.recordCount, MaxDevices)
	}
	l := Limits{Generation: file.generation, Oversubscribe: file.flags&flagOversubscribe != 0, Identity: file.identity, TurnID: TurnID(file.turnID)}
	for i := range file.recordCount {
		d, err := file.records[i].decode()
		if err != nil {
			return nil, Limits{}, fmt.Errorf("record %d: %w", i, err)
		}
		l.Devices = append(l.Devices, d)
	}
	return file, l, l.validate()
}

func (r *limitsRecord) decode() (DeviceLimit, error) {
	if r.sequence%2 != 0 {
		return DeviceLimit{}, fmt.Errorf("sequence %d is odd: %w", r.sequence, ErrHalfWritten)
	}
	if want := r.checksum(); r.crc32 != want {
		return DeviceLimit{}, fmt.Errorf("crc32 is %#x, not %#x", r.crc32, want)
	}
	uuid := formatUUID(r.uuid, r.flags&recordFlagMIG != 0)
	if name := string(bytes.TrimRight(r.name[:], "\x00")); name != uuid {
		return DeviceLimit{}, fmt.Errorf("name is %q, not %s", name, uuid)
	}
	return DeviceLimit{
		UUID:             uuid,
		MemoryLimitBytes: r.memoryLimitBytes,
		CorePercent:      r.corePercent,
		CoreSoftPercent:  r.coreSoftPercent,
		Policy:           Policy(r.policy),
		Priority:         Priority(r.priority),
		ContextBytes:     r.contextBytes,
		PhysicalBytes:    r.physicalBytes,
		Pages:            Pages{KiB: r.pageKiB, SmallKiB: r.smallKiB},
		Unmeasured:       r.flags&recordFlagUnmeasured != 0,
		MeasureFirst:     r.flags&recordFlagFirst != 0,
	}, nil
}
