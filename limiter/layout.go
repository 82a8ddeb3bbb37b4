package limiter

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"structs"
	"unsafe"
)

// The files as src/layout.h has them: little-endian, as every platform of this program. TestLayout compares both.
const (
	layoutNumber = 1
	uuidSize     = 16

	limitsMagic       = "GPUSLIM1"
	limitsSize        = 4096
	flagOversubscribe = 1

	recordFlagMIG        = 1
	recordFlagUnmeasured = 8
	recordFlagFirst      = 16
	maxMemoryLimitBytes  = 1 << 56 // sums stay far from 2^64
	maxRecordCorePercent = 100

	usageMagic      = "GPUSUSE1"
	usageSlots      = 1024
	usageProcesses  = 960 // the slots that processes use; the IPC records have the place of the others
	usageHeaderSize = int(unsafe.Sizeof(usageHeader{}))
	usageSlotSize   = int(unsafe.Sizeof(usageSlot{}))
	usageCellSize   = int(unsafe.Sizeof(usageCell{}))
	usageCellOffset = int(unsafe.Offsetof(usageSlot{}.cells))
	usageSize       = int64(usageHeaderSize + usageSlots*usageSlotSize)
	usageIPC        = int64(usageHeaderSize + usageProcesses*usageSlotSize)
	usageIPCRecords = 512
	usageLockSlow   = 1 << 40 // processes lock the bytes past the end of the file
	usageLockLast   = usageLockSlow + 2*usageSlots

	futexOwnerDied = 0x40000000 // linux/futex.h
	ownerSuspended = 0x80000000

	tableMagic  = "GPUSTAB1"
	tableShares = 1022
	turnMagic   = "GPUSTUR1"
	turnPeers   = 64
)

type limitsFile struct {
	limitsHeader
	records [MaxDevices]limitsRecord
	_       [limitsSize - unsafe.Sizeof(limitsHeader{}) - MaxDevices*unsafe.Sizeof(limitsRecord{})]byte
}

type limitsHeader struct {
	_ structs.HostLayout

	magic                                         [8]byte
	layout, headerBytes, recordBytes, recordCount uint32
	generation                                    uint64
	flags, crc32                                  uint32
	identity                                      Identity
	turnID                                        uint64
	reserved                                      [48]byte
}

// checksum excludes what changes: the generation, the identity, and the turn's ID.
func (h *limitsHeader) checksum() uint32 {
	b := bytesOf(h)
	crc := crc32.ChecksumIEEE(b[:unsafe.Offsetof(h.generation)])
	return crc32.Update(crc, crc32.IEEETable, b[unsafe.Offsetof(h.flags):unsafe.Offsetof(h.crc32)])
}

type limitsRecord struct {
	_ structs.HostLayout

	sequence, crc32                                       uint32
	uuid                                                  [uuidSize]byte
	memoryLimitBytes                                      uint64
	corePercent, coreSoftPercent, policy, priority, flags uint32
	correction, elasticPercent                            uint16 // for earlier limiters
	contextBytes                                          uint64
	name                                                  [44]byte
	pageKiB, smallKiB                                     uint16
	residueBytes, physicalBytes                           uint64
}

func (r *limitsRecord) checksum() uint32 {
	return crc32.ChecksumIEEE(bytesOf(r)[unsafe.Offsetof(r.uuid):])
}

// intact is false if its writer was killed, or the file is damaged.
func (r *limitsRecord) intact() bool { return r.sequence%2 == 0 && r.crc32 == r.checksum() }

type usageHeader struct {
	_ structs.HostLayout

	magic                                                                                     [8]byte
	layout, headerBytes, slotBytes, slotCount, cellOffset, cellBytes, cellCount, devices, mig uint32
	_                                                                                         [20]byte
	uuids                                                                                     [MaxDevices][uuidSize]byte
	_                                                                                         [704]byte
	highWater, ipcHigh                                                                        uint32
	_                                                                                         [1016]byte // of processes only
	compute                                                                                   [MaxDevices]usageCompute
}

type usageCompute struct {
	_ structs.HostLayout

	_                                        uint64
	busy                                     uint64
	_                                        uint64
	throttled, launches, lastLaunch, refused uint64
	_                                        [72]byte
}

type usageSlot struct {
	_ structs.HostLayout

	owner, pid uint32
	_          [120]byte // of processes only
	cells      [MaxDevices]usageCell
	exported   [MaxDevices]uint64 // of committed
}

// ipcState is the state of memory that processes share by legacy IPC (src/ipcrecord.h).
type ipcState uint64

// left is the memory that others can have open and the slot of its maker, or -1: the maker has left it. 0: none.
func (s ipcState) left() (device int, bytes uint64, maker int) {
	const phaseOpen, phaseLeft, unit = 2, 4, 512
	if s&7 < phaseOpen {
		return 0, 0, 0
	}
	maker = -1
	if s&7 != phaseLeft {
		maker = int(s>>7&1023) % usageProcesses
	}
	return int(s >> 3 & 15), uint64(s>>17&(1<<33-1)) * unit, maker
}

type usageCell struct {
	_ structs.HostLayout

	committed, tentative, context, pool, vmm, graph, array, spilled uint64
}

// tableFile has the shares of all containers of a GPU.
type tableFile struct {
	_ structs.HostLayout

	magic                                [8]byte
	sequence, crc32, count, floorPercent uint32
	_                                    uint64
	shares                               [tableShares]tableShare
}

// checksum excludes the magic number, the sequence and itself.
func (t *tableFile) checksum() uint32 {
	return crc32.ChecksumIEEE(bytesOf(t)[unsafe.Offsetof(t.count):])
}

type tableShare struct {
	_ structs.HostLayout

	id                       uint64
	corePercent, softPercent uint16
	policy, priority         uint8
	_                        uint16
}

// turnFile is a container's word to its peers on a GPU. Its processes write it; the host only creates it.
type turnFile struct {
	_ structs.HostLayout

	magic                   [8]byte
	id                      uint64
	wantUntil, holdUntil    uint64
	lag                     int64
	busy, looked, workUntil uint64
	cap                     int64
	processes, gapsUntil    uint64
	credit                  int64
	_                       [32]byte
	_                       [3968]byte // of processes only
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// parseUUID parses "GPU-" or "MIG-" and 8-4-4-4-12 digits into the bytes of cuDeviceGetUuid_v2.
func parseUUID(text string) (id [uuidSize]byte, mig bool, err error) {
	rest, ok := strings.CutPrefix(text, "GPU-")
	if !ok {
		rest, mig = strings.CutPrefix(text, "MIG-")
	}
	if !ok && !mig {
		return id, false, fmt.Errorf("uuid %q: it does not start with GPU- or MIG-", text)
	}
	if len(rest) != 36 || rest[8] != '-' || rest[13] != '-' || rest[18] != '-' || rest[23] != '-' {
		return id, false, fmt.Errorf("uuid %q: it does not have the form 8-4-4-4-12", text)
	}
	digits := rest[:8] + rest[9:13] + rest[14:18] + rest[19:23] + rest[24:]
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return id, false, fmt.Errorf("uuid %q: %w", text, err)
	}
	return id, mig, nil
}

func formatUUID(id [uuidSize]byte, mig bool) string {
	prefix := "GPU"
	if mig {
		prefix = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
}
