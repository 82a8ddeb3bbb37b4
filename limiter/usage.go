package limiter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

var ErrUsage = errors.New("not a usage file")

// ErrUsageVersion marks a usage file of another release's limiter. It is an ErrUsage too.
var ErrUsageVersion = fmt.Errorf("%w of this version", ErrUsage)

// Usage is what a container reports. A tenant can write any number.
type Usage struct {
	Processes int
	// Devices have the order of the limits file.
	Devices []DeviceUsage
}

// DeviceUsage is the use of one GPU. UsedBytes includes the parts and linear memory.
type DeviceUsage struct {
	UUID         string // from the file: compare by index
	UsedBytes    uint64
	ContextBytes uint64
	PoolBytes    uint64
	VMMBytes     uint64
	GraphBytes   uint64
	ArrayBytes   uint64
	SpilledBytes uint64 // can be in host memory; not a part
	// HeldBytes is exported memory of processes that have ended, while an import uses it, or that are checkpointed: part of
	// VMMBytes. And memory of legacy IPC that its maker has left, while others have it open, or of which the maker is
	// checkpointed. The driver counts none of it for a process.
	HeldBytes          uint64
	Processes          int // with memory on this GPU
	Cores              CoreUsage
	RefusedAllocations uint64
}

// CreateUsage creates a usage file for the GPUs of the limits file: sparse, mode 0666 for any user in the container. It
// does not replace a file. The directory must be private.
func CreateUsage(path string, uuids []string) error {
	header, err := newUsageHeader(uuids)
	if err == nil {
		err = inDir(path, func() error {
			return atomicfile.Create(path, 0o666, func(f *os.File) error {
				_, err := f.Write(bytesOf(header))
				return errors.Join(err, f.Truncate(usageSize))
			})
		})
	}
	if err != nil {
		return fmt.Errorf("create usage %s: %w", path, err)
	}
	return nil
}

func newUsageHeader(uuids []string) (*usageHeader, error) {
	if len(uuids) < 1 || len(uuids) > MaxDevices {
		return nil, fmt.Errorf("%w: %d GPUs, not 1 to %d", ErrLimits, len(uuids), MaxDevices)
	}
	h := &usageHeader{devices: uint32(len(uuids))}
	copy(h.magic[:], usageMagic)
	for _, f := range h.constants() {
		*f.is = f.want
	}
	for i, text := range uuids {
		id, mig, err := parseUUID(text)
		if err != nil {
			return nil, fmt.Errorf("%w: GPU %d: %w", ErrLimits, i, err)
		}
		if h.uuids[i] = id; mig {
			h.mig |= 1 << i
		}
	}
	return h, nil
}

type usageConstant struct {
	name string
	is   *uint32
	want uint32
}

func (h *usageHeader) constants() [7]usageConstant {
	return [...]usageConstant{
		{"layout", &h.layout, layoutNumber},
		{"header_bytes", &h.headerBytes, uint32(usageHeaderSize)},
		{"slot_bytes", &h.slotBytes, uint32(usageSlotSize)},
		{"slot_count", &h.slotCount, usageSlots},
		{"cell_offset", &h.cellOffset, uint32(usageCellOffset)},
		{"cell_bytes", &h.cellBytes, uint32(usageCellSize)},
		{"cell_count", &h.cellCount, MaxDevices},
	}
}

// ReadUsage reads a usage file without slots of ended processes. Their exported memory counts while another process of
// the container runs. Sums saturate.
func ReadUsage(path string) (Usage, error) {
	f, err := openUsage(path)
	if err != nil {
		return Usage{}, err
	}
	defer f.close()
	u, err := decodeUsage(f, f.gone)
	if err != nil {
		return Usage{}, fmt.Errorf("read usage %s: %w", path, err)
	}
	return u, nil
}

func openUsage(path string) (*file, error) {
	f := new(file)
	if err := f.openUsage(path, unix.O_RDONLY); err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return f, nil
}

func (f *file) openUsage(path string, access int) error {
	err := f.open(path, access)
	if errors.Is(err, errNotRegular) {
		err = fmt.Errorf("%s: %w: %w", path, ErrUsage, errNotRegular)
	}
	return err
}

// TrimUsage restores the size of a usage file, and reports whether it changed: a container can fill the file system with
// it, or cut it and fault. The size of another version is only bounded.
func TrimUsage(path string) (trimmed bool, err error) {
	// One system call for most files.
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == usageSize {
		return false, nil
	}
	var f file
	if err := f.openUsage(path, unix.O_RDWR); err != nil {
		return false, fmt.Errorf("trim usage: %w", err)
	}
	defer f.close()
	size := usageSize
	if otherVersion(&f) != nil {
		// The right size is not known.
		if size = mostUsageSize; f.stat.Size <= size {
			return false, nil
		}
	}
	if f.stat.Size == size {
		return false, nil
	}
	if err := unix.Ftruncate(f.fd, size); err != nil {
		return false, fmt.Errorf("trim usage %s: %w", path, err)
	}
	return true, nil
}

const mostUsageSize = 4 * usageSize

// gone reports whether the lock of a slot with a dead owner is free.
func decodeUsage(file io.ReaderAt, gone func(slot int) bool) (Usage, error) {
	var r Reader
	if err := r.decodeUsage(file, nil, gone); err != nil {
		return Usage{}, err
	}
	for i := range r.usage.Devices {
		r.usage.Devices[i].UUID = formatUUID(r.header.uuids[i], r.header.mig>>i&1 == 1)
	}
	return r.usage, nil
}

func (u *Usage) addSlots(slots []usageSlot, gone func(slot int) bool) {
	var held []*usageSlot
	for i := range slots {
		slot := &slots[i]
		switch {
		case slot.owner == 0:
		case !slot.ended(i, gone):
			u.Processes++
			if slot.suspended() {
				slot.leaveExported()
			}
			u.addCells(slot, slot.suspended())
		case slot.pid == 0:
			held = append(held, slot)
		}
	}
	if u.Processes == 0 {
		return // imports may have ended since the last process wrote
	}
	for _, slot := range held {
		u.addCells(slot, true)
	}
}

// leaveExported: of a checkpointed process the GPU has only what it has exported.
func (s *usageSlot) leaveExported() {
	for i := range s.cells {
		exported := min(s.exported[i], s.cells[i].committed)
		s.cells[i] = usageCell{committed: exported, vmm: exported}
	}
}

// addLeft adds memory of legacy IPC that its maker has left, or of a checkpointed maker. Without a process, nothing has it
// open.
func (u *Usage) addLeft(states []ipcState, slots []usageSlot, gone func(slot int) bool) {
	for _, s := range states {
		d, bytes, maker := s.left()
		if bytes == 0 || d >= len(u.Devices) || u.Processes == 0 {
			continue
		}
		if maker < 0 || maker < len(slots) && slots[maker].suspended() && !slots[maker].ended(maker, gone) {
			u.Devices[d].add(&usageCell{committed: bytes}, true)
		}
	}
}

func (s *usageSlot) suspended() bool { return s.owner&ownerSuspended != 0 }

func (s *usageSlot) ended(slot int, gone func(slot int) bool) bool {
	return s.owner&futexOwnerDied != 0 && gone(slot)
}

func (u *Usage) addCells(slot *usageSlot, held bool) {
	for d := range u.Devices {
		u.Devices[d].add(&slot.cells[d], held)
	}
}

// Each version begins with this many bytes.
const usageVersionBytes = int(unsafe.Offsetof(usageHeader{}.headerBytes))

func usageVersion(begin []byte) error {
	name := len(usageMagic) - 1 // without the digit
	if len(begin) < usageVersionBytes || string(begin[:name]) != usageMagic[:name] || begin[name] < '1' || begin[name] > '9' {
		return nil
	}
	magic, layout := string(begin[:name+1]), binary.LittleEndian.Uint32(begin[len(usageMagic):])
	if layout == 0 || layout > mostLayouts || magic == usageMagic && layout == layoutNumber {
		return nil
	}
	return fmt.Errorf("%w: it is %s of layout %d, and this program knows %s of layout %d", ErrUsageVersion, magic, layout, usageMagic, layoutNumber)
}

// mostLayouts: no limiter writes a larger number.
const mostLayouts = 255

func otherVersion(f io.ReaderAt) error {
	begin := make([]byte, usageVersionBytes)
	if _, err := f.ReadAt(begin, 0); err != nil {
		return nil // the next read reports it
	}
	return usageVersion(begin)
}

func (h *usageHeader) decode(u *Usage) error {
	if err := usageVersion(bytesOf(h)); err != nil {
		return err
	}
	if string(h.magic[:]) != usageMagic {
		return fmt.Errorf("%w: magic number %q, not %q", ErrUsage, h.magic, usageMagic)
	}
	for _, f := range h.constants() {
		if *f.is != f.want {
			return fmt.Errorf("%w: header %s is %d, not %d", ErrUsage, f.name, *f.is, f.want)
		}
	}
	if h.devices < 1 || h.devices > MaxDevices {
		return fmt.Errorf("%w: header device_count is %d, not 1 to %d", ErrUsage, h.devices, MaxDevices)
	}
	for i := range h.devices {
		u.Devices = append(u.Devices, DeviceUsage{Cores: h.compute[i].usage(), RefusedAllocations: h.compute[i].refused})
	}
	return nil
}

func (d *DeviceUsage) add(cell *usageCell, held bool) {
	heldBytes := uint64(0)
	switch {
	case held:
		heldBytes = cell.committed
	case cell.committed > 0:
		d.Processes++
	}
	for _, f := range []struct {
		sum  *uint64
		more uint64
	}{
		{&d.UsedBytes, cell.committed},
		{&d.ContextBytes, cell.context},
		{&d.PoolBytes, cell.pool},
		{&d.VMMBytes, cell.vmm},
		{&d.GraphBytes, cell.graph},
		{&d.ArrayBytes, cell.array},
		{&d.SpilledBytes, cell.spilled},
		{&d.HeldBytes, heldBytes},
	} {
		if *f.sum += f.more; *f.sum < f.more {
			*f.sum = ^uint64(0)
		}
	}
}

func (f *file) gone(slot int) bool {
	locked, err := f.lockedBytes(usageLockSlow+1+int64(slot), 1)
	return err == nil && !locked
}

// mostUsage, 1 PiB, is more than the GPUs of any node have.
const mostUsage = 1 << 50

// CheckUsage returns an error if a container damaged its usage file for these GPUs, or if it has another version
// (ErrUsageVersion). The numbers can still be false.
func CheckUsage(path string, uuids []string) error {
	f, err := openUsage(path)
	if err != nil {
		return err
	}
	defer f.close()
	if err := checkUsage(f, append([]string{}, uuids...)); err != nil {
		return fmt.Errorf("check usage %s: %w", path, err)
	}
	return nil
}

func checkUsage(f *file, uuids []string) error {
	if err := otherVersion(f); err != nil {
		return err
	}
	if f.stat.Size != usageSize {
		return fmt.Errorf("%w: its size is %d bytes, not %d", ErrUsage, f.stat.Size, usageSize)
	}
	var r Reader
	if err := r.decodeUsage(f, uuids, func(int) bool { return false }); err != nil {
		return err
	}
	for i, d := range r.usage.Devices {
		if d.UsedBytes > mostUsage {
			return fmt.Errorf("%w: GPU %d: %d bytes in use, more than possible", ErrUsage, i, d.UsedBytes)
		}
	}
	return nil
}
