package limiter

import (
	"bytes"
	"fmt"
	"unsafe"
)

func encodeLimits(l Limits, generation uint64) (*limitsFile, error) {
	file := &limitsFile{limitsHeader: limitsHeader{
		layout: layoutNumber, headerBytes: uint32(unsafe.Sizeof(limitsHeader{})), recordBytes: uint32(unsafe.Sizeof(limitsRecord{})),
		recordCount: uint32(len(l.Devices)), generation: generation, identity: l.Identity,
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
		}
		if mig {
			r.flags = recordFlagMIG
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
	l := Limits{Generation: file.generation, Oversubscribe: file.flags&flagOversubscribe != 0, Identity: file.identity}
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
	}, nil
}
