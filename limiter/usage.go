package limiter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUsage marks a usage file that is not one, or that a tenant has spoilt.
var ErrUsage = errors.New("not a usage file")

// ErrUsageVersion marks a usage file of another version: its container was started with a
// limiter that is newer, or much older, than this program. Nothing is known of what is in it.
// It is an ErrUsage too.
var ErrUsageVersion = fmt.Errorf("%w of this version", ErrUsage)

// Usage is what a container's processes say that they use. A tenant can write
// the file: the numbers are bounded, not believed.
type Usage struct {
	// Processes is the number of slots that live processes hold.
	Processes int
	// Devices are in the order of the limits file, as CreateUsage was given them.
	Devices []DeviceUsage
}

// DeviceUsage is the use of one GPU. The parts are within UsedBytes; what is in
// none of them is linear memory.
type DeviceUsage struct {
	UUID         string // as the file has it: compare by index with your own
	UsedBytes    uint64
	ContextBytes uint64
	PoolBytes    uint64
	VMMBytes     uint64
	GraphBytes   uint64
	ArrayBytes   uint64
	SpilledBytes uint64 // that may lie in the host's memory; not one of the parts
	// HeldBytes is memory of processes that have ended, which exported it: a descriptor or an
	// import holds it. It is in VMMBytes, and on no process' account with the driver.
	HeldBytes uint64
	Processes int // that have something on this GPU
	Cores     CoreUsage
	// RefusedAllocations is how many the limit has refused, by libraries that count them.
	RefusedAllocations uint64
}

// CreateUsage makes the usage file of a container for the GPUs of its limits
// file, in that order: of fixed size, sparse, mode 0666 whatever the umask, for
// the container's processes may run as anyone. Its directory must be private. It
// refuses to replace a file: processes may have it mapped.
func CreateUsage(path string, uuids []string) error {
	header, err := usageHeader(uuids)
	if err != nil {
		return fmt.Errorf("create usage %s: %w", path, err)
	}
	if err := place(path, 0o666, unix.RENAME_NOREPLACE, func(f *os.File) error {
		_, err := f.Write(header)
		return errors.Join(err, f.Truncate(usageSize))
	}); err != nil {
		return fmt.Errorf("create usage %s: %w", path, err)
	}
	return nil
}

func usageHeader(uuids []string) ([]byte, error) {
	if len(uuids) < 1 || len(uuids) > MaxDevices {
		return nil, fmt.Errorf("%w: %d GPUs, not 1 to %d", ErrLimits, len(uuids), MaxDevices)
	}
	h := make([]byte, usageHeaderSize)
	copy(h, usageMagic)
	for _, f := range usageConstants {
		le.PutUint32(h[f.off:], f.want)
	}
	le.PutUint32(h[usageOffDevices:], uint32(len(uuids)))
	for i, text := range uuids {
		id, mig, err := parseUUID(text)
		if err != nil {
			return nil, fmt.Errorf("%w: GPU %d: %w", ErrLimits, i, err)
		}
		if mig {
			le.PutUint32(h[usageOffMIG:], le.Uint32(h[usageOffMIG:])|1<<i)
		}
		copy(h[usageOffUUID+i*uuidSize:], id[:])
	}
	return h, nil
}

var usageConstants = []struct {
	name string
	off  int
	want uint32
}{
	{"layout", usageOffLayout, layoutNumber},
	{"header_bytes", usageOffHeader, usageHeaderSize},
	{"slot_bytes", usageOffSlot, usageSlotSize},
	{"slot_count", usageOffSlots, usageSlots},
	{"cell_offset", usageOffCellOffset, usageCellOffset},
	{"cell_bytes", usageOffCell, usageCellSize},
	{"cell_count", usageOffCells, MaxDevices},
}

// ReadUsage reads a usage file as it is at the moment. Slots of processes that
// are gone, by the kernel's word, don't count, whether or not a process of the container
// has cleared them. While one lives, the exported memory counts that it has found to be held.
// Sums saturate.
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

// openUsage opens a usage file to read.
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

// TrimUsage gives a usage file back its fixed size, and says whether it had
// another. A container may write its file, and so may grow it until the directory that
// holds all containers' files is full; or cut it, and then its processes fault where
// they have mapped what is gone. What was cut off comes back as zeros. Processes that
// use the file go on. One of another version is only kept from growing without end.
func TrimUsage(path string) (trimmed bool, err error) {
	// One call for nearly all of them: a node has hundreds, and they are looked at often.
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == usageSize {
		return false, nil
	}
	var f file
	if err := f.openUsage(path, unix.O_RDWR); err != nil {
		return false, fmt.Errorf("trim usage: %w", err)
	}
	defer f.close()
	size := int64(usageSize)
	if otherVersion(&f) != nil {
		// Its size is not known, and what it says of itself a tenant may have written: it is
		// bounded all the same.
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

// mostUsageSize is how large a file of another version may be.
const mostUsageSize = 4 * usageSize

// decodeUsage reads with bounds from anything. gone tells of a slot whose owner
// died whether its lock is free, so that its memory is back too.
func decodeUsage(file io.ReaderAt, gone func(slot int) bool) (Usage, error) {
	header := make([]byte, usageHeaderSize)
	if _, err := file.ReadAt(header, 0); err != nil {
		if err := otherVersion(file); err != nil {
			return Usage{}, err
		}
		return Usage{}, fmt.Errorf("%w: header: %w", ErrUsage, err)
	}
	u, err := decodeUsageHeader(header)
	if err != nil {
		return Usage{}, err
	}
	slots := make([]byte, slotCount(header)*usageSlotSize)
	if _, err := file.ReadAt(slots, usageHeaderSize); err != nil && len(slots) > 0 {
		return Usage{}, fmt.Errorf("%w: slots: %w", ErrUsage, err)
	}
	u.addSlots(slots, gone)
	return u, nil
}

// slotCount is how many slots may have something in them.
func slotCount(header []byte) int { return int(min(le.Uint32(header[usageOffHighWater:]), usageSlots)) }

// addSlots adds up the slots of processes that live, and exported memory of those that have ended.
func (u *Usage) addSlots(slots []byte, gone func(slot int) bool) {
	var held [][]byte
	for i := range len(slots) / usageSlotSize {
		slot := slots[i*usageSlotSize:][:usageSlotSize]
		owner := le.Uint32(slot[slotOffOwner:])
		switch {
		case owner == 0:
		case owner&futexOwnerDied == 0 || !gone(i):
			u.Processes++
			u.addCells(slot, false)
		case le.Uint32(slot[slotOffPID:]) == 0:
			held = append(held, slot)
		}
	}
	if u.Processes == 0 {
		return // what holds it may have ended since a process of the container looked
	}
	for _, slot := range held {
		u.addCells(slot, true)
	}
}

func (u *Usage) addCells(slot []byte, held bool) {
	for d := range u.Devices {
		u.Devices[d].add(slot[usageCellOffset+d*usageCellSize:][:usageCellSize], held)
	}
}

func decodeUsageHeader(h []byte) (Usage, error) {
	var u Usage
	if err := decodeUsageInto(&u, h); err != nil {
		return Usage{}, err
	}
	for i := range u.Devices {
		mig := le.Uint32(h[usageOffMIG:])>>i&1 == 1
		u.Devices[i].UUID = formatUUID(h[usageOffUUID+i*uuidSize:][:uuidSize], mig)
	}
	return u, nil
}

// usageVersionBytes is the beginning of a usage file, in which each version says what it is.
const usageVersionBytes = usageOffLayout + 4

// usageVersion says of a file that begins so whether it is of another version.
func usageVersion(begin []byte) error {
	name := len(usageMagic) - 1 // and a digit
	if len(begin) < usageVersionBytes || string(begin[:name]) != usageMagic[:name] || begin[name] < '1' || begin[name] > '9' {
		return nil
	}
	magic, layout := string(begin[:name+1]), le.Uint32(begin[usageOffLayout:])
	if layout == 0 || layout > mostLayouts || magic == usageMagic && layout == layoutNumber {
		return nil
	}
	return fmt.Errorf("%w: it is %s of layout %d, and this program knows %s of layout %d", ErrUsageVersion, magic, layout, usageMagic, layoutNumber)
}

// mostLayouts is more than there will be: a larger number was written by no limiter.
const mostLayouts = 255

// otherVersion is usageVersion of a file.
func otherVersion(f io.ReaderAt) error {
	begin := make([]byte, usageVersionBytes)
	if _, err := f.ReadAt(begin, 0); err != nil {
		return nil // it is none, and who reads on says so
	}
	return usageVersion(begin)
}

// decodeUsageInto reads what the header has but for the UUIDs, into memory that may have
// been used before.
func decodeUsageInto(u *Usage, h []byte) error {
	if err := usageVersion(h); err != nil {
		return err
	}
	if !bytes.HasPrefix(h, []byte(usageMagic)) {
		return fmt.Errorf("%w: magic number %q, not %q", ErrUsage, h[:8], usageMagic)
	}
	for _, f := range usageConstants {
		if got := le.Uint32(h[f.off:]); got != f.want {
			return fmt.Errorf("%w: header %s is %d, not %d", ErrUsage, f.name, got, f.want)
		}
	}
	count := le.Uint32(h[usageOffDevices:])
	if count < 1 || count > MaxDevices {
		return fmt.Errorf("%w: header device_count is %d, not 1 to %d", ErrUsage, count, MaxDevices)
	}
	for i := range int(count) {
		u.Devices = append(u.Devices, DeviceUsage{Cores: decodeBucket(h, i), RefusedAllocations: le.Uint64(bucketAt(h, i)[bucketOffRefused:])})
	}
	return nil
}

// add adds a cell: of a process that lives, or the held memory of one that has ended.
func (d *DeviceUsage) add(cell []byte, held bool) {
	used, heldBytes := le.Uint64(cell[cellOffCommitted:]), uint64(0)
	switch {
	case held:
		heldBytes = used
	case used > 0:
		d.Processes++
	}
	for _, f := range []struct {
		sum  *uint64
		more uint64
	}{
		{&d.UsedBytes, used},
		{&d.ContextBytes, le.Uint64(cell[cellOffContext:])},
		{&d.PoolBytes, le.Uint64(cell[cellOffPool:])},
		{&d.VMMBytes, le.Uint64(cell[cellOffVMM:])},
		{&d.GraphBytes, le.Uint64(cell[cellOffGraph:])},
		{&d.ArrayBytes, le.Uint64(cell[cellOffArray:])},
		{&d.SpilledBytes, le.Uint64(cell[cellOffSpilled:])},
		{&d.HeldBytes, heldBytes},
	} {
		if *f.sum += f.more; *f.sum < f.more {
			*f.sum = ^uint64(0)
		}
	}
}

// gone says whether the lock is free of a slot with an owner that died. Where that is not
// known, it is not free.
func (f *file) gone(slot int) bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1 + int64(slot), Len: 1}
	err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type == unix.F_UNLCK
}
