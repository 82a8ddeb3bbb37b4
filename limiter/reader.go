package limiter

import (
	"fmt"
	"io"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reader reuses its memory for many containers. It is for one goroutine; the zero value is ready.
type Reader struct {
	file    file
	header  usageHeader
	slots   []usageSlot
	ipc     []ipcState
	usage   Usage
	limits  limitsFile
	residue []uint64
}

// Usage reads a usage file for these GPUs, without UUIDs in the result, which the next call overwrites. An error can have
// a partial result.
func (r *Reader) Usage(path string, uuids []string) (*Usage, error) {
	r.usage = Usage{Devices: r.usage.Devices[:0]}
	if err := r.file.openUsage(path, unix.O_RDONLY); err != nil {
		return &r.usage, fmt.Errorf("read usage: %w", err)
	}
	defer r.file.close()
	if err := r.decodeUsage(&r.file, uuids, r.file.gone); err != nil {
		return &r.usage, fmt.Errorf("read usage %s: %w", path, err)
	}
	if size := r.file.stat.Size; size != usageSize {
		return &r.usage, fmt.Errorf("read usage %s: %w: it has %d bytes, not %d", path, ErrUsage, size, usageSize)
	}
	return &r.usage, nil
}

func (r *Reader) decodeUsage(file io.ReaderAt, uuids []string, gone func(slot int) bool) error {
	if _, err := file.ReadAt(bytesOf(&r.header), 0); err != nil {
		if err := otherVersion(file); err != nil {
			return err
		}
		return fmt.Errorf("%w: header: %w", ErrUsage, err)
	}
	if err := r.header.decode(&r.usage); err != nil {
		return err
	}
	if err := r.header.checkGPUs(uuids); err != nil {
		return err
	}
	count := int(min(r.header.highWater, usageSlots))
	r.slots = slices.Grow(r.slots[:0], count)[:count]
	if count > 0 {
		if _, err := file.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&r.slots[0])), count*usageSlotSize), int64(usageHeaderSize)); err != nil {
			return fmt.Errorf("%w: slots: %w", ErrUsage, err)
		}
	}
	r.usage.addSlots(r.slots, gone)
	return r.decodeIPC(file, gone)
}

func (r *Reader) decodeIPC(file io.ReaderAt, gone func(slot int) bool) error {
	count := int(min(r.header.ipcHigh, usageIPCRecords))
	if count == 0 {
		return nil
	}
	r.ipc = slices.Grow(r.ipc[:0], count)[:count]
	if _, err := file.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&r.ipc[0])), count*int(unsafe.Sizeof(r.ipc[0]))), usageIPC); err != nil {
		return fmt.Errorf("%w: IPC records: %w", ErrUsage, err)
	}
	r.usage.addLeft(r.ipc, r.slots, gone)
	return nil
}

// checkGPUs checks the header's GPUs; nil: any.
func (h *usageHeader) checkGPUs(uuids []string) error {
	if uuids == nil {
		return nil
	}
	if int(h.devices) != len(uuids) {
		return fmt.Errorf("%w: header device_count is %d, not %d", ErrUsage, h.devices, len(uuids))
	}
	for i, text := range uuids {
		id, mig, err := parseUUID(text)
		if err != nil {
			return err
		}
		if h.uuids[i] != id || (h.mig>>i&1 == 1) != mig {
			return fmt.Errorf("%w: header uuid %d is not that of %s", ErrUsage, i, text)
		}
	}
	return nil
}

// Residue is ReadResidue, with zero for records that are still being changed. The next call overwrites the result.
func (r *Reader) Residue(path string) ([]uint64, error) {
	if err := r.file.open(path, unix.O_RDONLY); err != nil {
		return nil, fmt.Errorf("read residue: %w", err)
	}
	defer r.file.close()
	for try := 1; ; try++ {
		if _, err := r.file.ReadAt(bytesOf(&r.limits), 0); err != nil {
			return nil, fmt.Errorf("read residue of %s: %w", path, err)
		}
		whole, err := r.decodeResidue()
		if err != nil {
			return nil, fmt.Errorf("read residue of %s: %w", path, err)
		}
		if whole || try == residueTries {
			return r.residue, nil
		}
	}
}

// A change takes less than a microsecond.
const residueTries = 5

// decodeResidue reports whether all records were complete.
func (r *Reader) decodeResidue() (whole bool, err error) {
	file := &r.limits
	if string(file.magic[:]) != limitsMagic || file.layout != layoutNumber || file.crc32 != file.checksum() {
		return false, fmt.Errorf("%w: invalid header", ErrLimits)
	}
	r.residue, whole = r.residue[:0], true
	for i := range min(file.recordCount, MaxDevices) {
		bytes := uint64(0)
		if record := &file.records[i]; record.intact() {
			bytes = record.residueBytes
		} else {
			whole = false
		}
		r.residue = append(r.residue, bytes)
	}
	return whole, nil
}
