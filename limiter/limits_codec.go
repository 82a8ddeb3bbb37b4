package limiter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var le = binary.LittleEndian

func encodeLimits(l Limits, generation uint64) ([]byte, error) {
	file := make([]byte, limitsSize)
	copy(file, limitsMagic)
	le.PutUint32(file[limitsOffLayout:], layoutNumber)
	le.PutUint32(file[limitsOffHeader:], limitsHeaderSize)
	le.PutUint32(file[limitsOffRecord:], limitsRecordSize)
	le.PutUint32(file[limitsOffCount:], uint32(len(l.Devices)))
	le.PutUint64(file[limitsOffGen:], generation)
	if l.Oversubscribe {
		le.PutUint32(file[limitsOffFlags:], flagOversubscribe)
	}
	le.PutUint32(file[limitsOffCRC:], headerCRC(file))
	copy(file[limitsOffIdentity:], l.Identity[:])
	for i, d := range l.Devices {
		if err := encodeRecord(recordAt(file, i), d); err != nil {
			return nil, err
		}
	}
	return file, nil
}

func encodeRecord(r []byte, d DeviceLimit) error {
	id, mig, err := parseUUID(d.UUID)
	if err != nil {
		return err
	}
	clear(r[recordOffUUID:])
	copy(r[recordOffUUID:], id[:])
	le.PutUint64(r[recordOffMemory:], d.MemoryLimitBytes)
	le.PutUint32(r[recordOffCore:], d.CorePercent)
	le.PutUint32(r[recordOffCoreSoft:], d.CoreSoftPercent)
	le.PutUint32(r[recordOffPolicy:], uint32(d.Policy))
	le.PutUint32(r[recordOffPriority:], uint32(d.Priority))
	if mig {
		le.PutUint32(r[recordOffFlags:], recordFlagMIG)
	}
	le.PutUint64(r[recordOffContext:], d.ContextBytes)
	copy(r[recordOffName:recordOffName+recordNameSize], formatUUID(id[:], mig))
	le.PutUint64(r[recordOffPhysical:], d.PhysicalBytes)
	le.PutUint32(r[recordOffCRC:], crc32.ChecksumIEEE(r[recordOffUUID:]))
	return nil
}

// decodeLimits makes the same checks as the library.
func decodeLimits(file []byte) (Limits, error) {
	if len(file) != limitsSize {
		return Limits{}, fmt.Errorf("%d bytes long, not %d", len(file), limitsSize)
	}
	if !bytes.HasPrefix(file, []byte(limitsMagic)) {
		return Limits{}, fmt.Errorf("magic number %q, not %q", file[:8], limitsMagic)
	}
	for _, f := range []struct {
		name string
		off  int
		want uint32
	}{
		{"layout", limitsOffLayout, layoutNumber},
		{"header_bytes", limitsOffHeader, limitsHeaderSize},
		{"record_bytes", limitsOffRecord, limitsRecordSize},
		{"crc32", limitsOffCRC, headerCRC(file)},
	} {
		if got := le.Uint32(file[f.off:]); got != f.want {
			return Limits{}, fmt.Errorf("header %s is %#x, not %#x", f.name, got, f.want)
		}
	}
	l := Limits{
		Generation:    le.Uint64(file[limitsOffGen:]),
		Oversubscribe: le.Uint32(file[limitsOffFlags:])&flagOversubscribe != 0,
	}
	copy(l.Identity[:], file[limitsOffIdentity:])
	count := le.Uint32(file[limitsOffCount:])
	if count < 1 || count > MaxDevices {
		return Limits{}, fmt.Errorf("header record_count is %d, not 1 to %d", count, MaxDevices)
	}
	for i := range int(count) {
		d, err := decodeRecord(recordAt(file, i))
		if err != nil {
			return Limits{}, fmt.Errorf("record %d: %w", i, err)
		}
		l.Devices = append(l.Devices, d)
	}
	return l, l.validate()
}

func decodeRecord(r []byte) (DeviceLimit, error) {
	if seq := le.Uint32(r[recordOffSequence:]); seq%2 != 0 {
		return DeviceLimit{}, fmt.Errorf("sequence %d is odd: %w", seq, ErrHalfWritten)
	}
	if got, want := le.Uint32(r[recordOffCRC:]), crc32.ChecksumIEEE(r[recordOffUUID:]); got != want {
		return DeviceLimit{}, fmt.Errorf("crc32 is %#x, not %#x", got, want)
	}
	mig := le.Uint32(r[recordOffFlags:])&recordFlagMIG != 0
	uuid := formatUUID(r[recordOffUUID:recordOffUUID+uuidSize], mig)
	if name := string(bytes.TrimRight(r[recordOffName:recordOffName+recordNameSize], "\x00")); name != uuid {
		return DeviceLimit{}, fmt.Errorf("name is %q, not %s", name, uuid)
	}
	return DeviceLimit{
		UUID:             uuid,
		MemoryLimitBytes: le.Uint64(r[recordOffMemory:]),
		CorePercent:      le.Uint32(r[recordOffCore:]),
		CoreSoftPercent:  le.Uint32(r[recordOffCoreSoft:]),
		Policy:           Policy(le.Uint32(r[recordOffPolicy:])),
		Priority:         Priority(le.Uint32(r[recordOffPriority:])),
		ContextBytes:     le.Uint64(r[recordOffContext:]),
		PhysicalBytes:    le.Uint64(r[recordOffPhysical:]),
	}, nil
}

func recordAt(file []byte, i int) []byte {
	off := limitsHeaderSize + i*limitsRecordSize
	return file[off : off+limitsRecordSize : off+limitsRecordSize]
}

// headerCRC excludes the generation.
func headerCRC(file []byte) uint32 {
	crc := crc32.ChecksumIEEE(file[:limitsOffGen])
	return crc32.Update(crc, crc32.IEEETable, file[limitsOffFlags:limitsOffCRC])
}
