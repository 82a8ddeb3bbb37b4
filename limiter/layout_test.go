package limiter

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// The Go structs against the C header, as the compiler sees it.
func TestLayout(t *testing.T) {
	want := []struct {
		c    string
		goes int
	}{
		{"VGPU_LAYOUT", layoutNumber},
		{"VGPU_MAX_DEVICES", MaxDevices},
		{"VGPU_LIMITS_OVERSUBSCRIBE", flagOversubscribe},
		{"VGPU_RECORD_MIG", recordFlagMIG},
		{"sizeof(struct vgpu_limits)", limitsHeaderSize + MaxDevices*limitsRecordSize},
		{"VGPU_LIMITS_BYTES", limitsSize},
		{"VGPU_LIMITS_BYTES", int(unsafe.Sizeof(limitsFile{}))},
		{"offsetof(struct vgpu_limits, records)", limitsHeaderSize},
		{"sizeof(struct vgpu_record)", limitsRecordSize},
		{"offsetof(struct vgpu_limits, layout)", limitsOffLayout},
		{"offsetof(struct vgpu_limits, header_bytes)", limitsOffHeader},
		{"offsetof(struct vgpu_limits, record_bytes)", limitsOffRecord},
		{"offsetof(struct vgpu_limits, record_count)", limitsOffCount},
		{"offsetof(struct vgpu_limits, generation)", limitsOffGen},
		{"offsetof(struct vgpu_limits, flags)", limitsOffFlags},
		{"offsetof(struct vgpu_limits, crc32)", limitsOffCRC},
		{"offsetof(struct vgpu_limits, identity)", limitsOffIdentity},
		{"sizeof(((struct vgpu_limits *)0)->identity)", identitySize},
		{"offsetof(struct vgpu_record, sequence)", recordOffSequence},
		{"offsetof(struct vgpu_record, crc32)", recordOffCRC},
		{"offsetof(struct vgpu_record, uuid)", recordOffUUID},
		{"offsetof(struct vgpu_record, memory_limit_bytes)", recordOffMemory},
		{"offsetof(struct vgpu_record, core_percent)", recordOffCore},
		{"offsetof(struct vgpu_record, core_soft_percent)", recordOffCoreSoft},
		{"offsetof(struct vgpu_record, policy)", recordOffPolicy},
		{"offsetof(struct vgpu_record, priority)", recordOffPriority},
		{"offsetof(struct vgpu_record, flags)", recordOffFlags},
		{"offsetof(struct vgpu_record, context_bytes)", recordOffContext},
		{"offsetof(struct vgpu_record, name)", recordOffName},
		{"sizeof(((struct vgpu_record *)0)->name)", recordNameSize},
		{"offsetof(struct vgpu_record, page_kib)", recordOffPage},
		{"offsetof(struct vgpu_record, small_kib)", recordOffSmall},
		{"offsetof(struct vgpu_record, residue_bytes)", recordOffResidue},
		{"offsetof(struct vgpu_record, physical_bytes)", recordOffPhysical},
		{"offsetof(struct vgpu_limits, turn_id)", int(unsafe.Offsetof(limitsHeader{}.turnID))},
		{"offsetof(struct vgpu_usage, compute)", usageOffCompute},
		{"sizeof(struct vgpu_compute)", usageComputeSize},
		{"offsetof(struct vgpu_compute, busy)", computeOffBusy},
		{"offsetof(struct vgpu_compute, throttled)", computeOffThrottled},
		{"offsetof(struct vgpu_compute, launches)", computeOffLaunches},
		{"offsetof(struct vgpu_compute, last_launch)", computeOffLastLaunch},
		{"offsetof(struct vgpu_compute, refused)", computeOffRefused},
		{"sizeof(struct vgpu_table)", int(unsafe.Sizeof(tableFile{}))},
		{"offsetof(struct vgpu_table, sequence)", int(unsafe.Offsetof(tableFile{}.sequence))},
		{"offsetof(struct vgpu_table, crc32)", int(unsafe.Offsetof(tableFile{}.crc32))},
		{"offsetof(struct vgpu_table, count)", int(unsafe.Offsetof(tableFile{}.count))},
		{"offsetof(struct vgpu_table, floor_percent)", int(unsafe.Offsetof(tableFile{}.floorPercent))},
		{"offsetof(struct vgpu_table, shares)", int(unsafe.Offsetof(tableFile{}.shares))},
		{"VGPU_TABLE_SHARES", tableShares},
		{"sizeof(struct vgpu_share)", int(unsafe.Sizeof(tableShare{}))},
		{"offsetof(struct vgpu_share, id)", int(unsafe.Offsetof(tableShare{}.id))},
		{"offsetof(struct vgpu_share, core_percent)", int(unsafe.Offsetof(tableShare{}.corePercent))},
		{"offsetof(struct vgpu_share, soft_percent)", int(unsafe.Offsetof(tableShare{}.softPercent))},
		{"offsetof(struct vgpu_share, policy)", int(unsafe.Offsetof(tableShare{}.policy))},
		{"offsetof(struct vgpu_share, priority)", int(unsafe.Offsetof(tableShare{}.priority))},
		{"sizeof(struct vgpu_turn)", int(unsafe.Sizeof(turnFile{}))},
		{"offsetof(struct vgpu_turn_words, id)", int(unsafe.Offsetof(turnFile{}.id))},
		{"offsetof(struct vgpu_turn_words, want_until)", int(unsafe.Offsetof(turnFile{}.wantUntil))},
		{"offsetof(struct vgpu_turn_words, hold_until)", int(unsafe.Offsetof(turnFile{}.holdUntil))},
		{"offsetof(struct vgpu_turn_words, lag)", int(unsafe.Offsetof(turnFile{}.lag))},
		{"offsetof(struct vgpu_turn_words, busy)", int(unsafe.Offsetof(turnFile{}.busy))},
		{"offsetof(struct vgpu_turn_words, looked)", int(unsafe.Offsetof(turnFile{}.looked))},
		{"offsetof(struct vgpu_turn_words, work_until)", int(unsafe.Offsetof(turnFile{}.workUntil))},
		{"offsetof(struct vgpu_turn_words, gaps_until)", int(unsafe.Offsetof(turnFile{}.gapsUntil))},
		{"offsetof(struct vgpu_turn_words, credit)", int(unsafe.Offsetof(turnFile{}.credit))},
		{"offsetof(struct vgpu_turn_words, cap)", int(unsafe.Offsetof(turnFile{}.cap))},
		{"VGPU_TURN_PEERS", turnPeers},
		{"VGPU_RECORD_UNMEASURED", recordFlagUnmeasured},
		{"VGPU_RECORD_FIRST", recordFlagFirst},
		{"sizeof(struct vgpu_usage)", int(usageSize)},
		{"offsetof(struct vgpu_usage, slots)", usageHeaderSize},
		{"VGPU_SLOT_COUNT", usageSlots},
		{"VGPU_PROCESSES", usageProcesses},
		{"VGPU_IPC_RECORDS", usageIPCRecords},
		{"offsetof(struct vgpu_usage, ipc)", int(usageIPC)},
		{"offsetof(struct vgpu_usage, ipc.state)", int(usageIPC)},
		{"offsetof(struct vgpu_usage, ipc_high)", int(unsafe.Offsetof(usageHeader{}.ipcHigh))},
		{"sizeof(struct vgpu_slot)", usageSlotSize},
		{"offsetof(struct vgpu_slot, cells)", usageCellOffset},
		{"sizeof(struct vgpu_cell)", usageCellSize},
		{"offsetof(struct vgpu_usage, layout)", usageOffLayout},
		{"offsetof(struct vgpu_usage, header_bytes)", usageOffHeader},
		{"offsetof(struct vgpu_usage, slot_bytes)", usageOffSlot},
		{"offsetof(struct vgpu_usage, slot_count)", usageOffSlots},
		{"offsetof(struct vgpu_usage, cell_offset)", usageOffCellOffset},
		{"offsetof(struct vgpu_usage, cell_bytes)", usageOffCell},
		{"offsetof(struct vgpu_usage, cell_count)", usageOffCells},
		{"offsetof(struct vgpu_usage, device_count)", usageOffDevices},
		{"offsetof(struct vgpu_usage, mig_cells)", usageOffMIG},
		{"offsetof(struct vgpu_usage, uuid)", usageOffUUID},
		{"offsetof(struct vgpu_usage, high_water)", usageOffHighWater},
		{"offsetof(struct vgpu_usage, charged)", 1032},
		{"offsetof(struct vgpu_usage, ipc_left)", 1160},
		{"offsetof(struct vgpu_slot, owner)", slotOffOwner},
		{"offsetof(struct vgpu_slot, pid)", slotOffPID},
		{"offsetof(struct vgpu_slot, start_time)", 8},
		{"offsetof(struct vgpu_slot, pid_ns)", 16},
		{"offsetof(struct vgpu_slot, exports_byte)", 24},
		{"offsetof(struct vgpu_slot, exports_dev)", 32},
		{"offsetof(struct vgpu_slot, exports_ino)", 40},
		{"offsetof(struct vgpu_slot, imports)", 48},
		{"offsetof(struct vgpu_slot, exported)", slotOffExported},
		{"VGPU_MAX_IMPORTS", 40},
		{"offsetof(struct vgpu_cell, committed)", cellOffCommitted},
		{"offsetof(struct vgpu_cell, tentative)", cellOffTentative},
		{"offsetof(struct vgpu_cell, context)", cellOffContext},
		{"offsetof(struct vgpu_cell, pool)", cellOffPool},
		{"offsetof(struct vgpu_cell, vmm)", cellOffVMM},
		{"offsetof(struct vgpu_cell, graph)", cellOffGraph},
		{"offsetof(struct vgpu_cell, array)", cellOffArray},
		{"offsetof(struct vgpu_cell, spilled)", cellOffSpilled},
		{"VGPU_LOCK_SLOW", usageLockSlow},
		{"VGPU_LOCK_SLOT(0)", usageLockSlow + 1},
		{"VGPU_LOCK_SUSPEND(VGPU_SLOT_COUNT - 1)", usageLockLast},
		{"VGPU_OWNER_SUSPENDED", ownerSuspended},
		{"FUTEX_WAITERS", ownerSuspended},
		{"FUTEX_OWNER_DIED", futexOwnerDied},
	}
	var c, expected strings.Builder
	c.WriteString("#include <linux/futex.h>\n#include <stdio.h>\n#include \"layout.h\"\nint main(void) {\n")
	for _, w := range want {
		c.WriteString("printf(\"%s %lld\\n\", \"" + w.c + "\", (long long)" + w.c + ");\n")
		expected.WriteString(w.c + " " + itoa(w.goes) + "\n")
	}
	c.WriteString("return 0; }\n")
	if diff := cmp.Diff(expected.String(), compileAndRun(t, c.String())); diff != "" {
		t.Errorf("limiter/layout.go (-) against limiter/src/layout.h (+):\n%s", diff)
	}
}

func compileAndRun(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "layout.c")
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "layout")
	if out, err := exec.Command("cc", "-std=c11", "-Isrc", "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var le = binary.LittleEndian

// Offsets and sizes in bytes, for tests that write into files.
const (
	limitsHeaderSize  = int(unsafe.Sizeof(limitsHeader{}))
	limitsRecordSize  = int(unsafe.Sizeof(limitsRecord{}))
	limitsOffLayout   = int(unsafe.Offsetof(limitsHeader{}.layout))
	limitsOffHeader   = int(unsafe.Offsetof(limitsHeader{}.headerBytes))
	limitsOffRecord   = int(unsafe.Offsetof(limitsHeader{}.recordBytes))
	limitsOffCount    = int(unsafe.Offsetof(limitsHeader{}.recordCount))
	limitsOffGen      = int(unsafe.Offsetof(limitsHeader{}.generation))
	limitsOffFlags    = int(unsafe.Offsetof(limitsHeader{}.flags))
	limitsOffCRC      = int(unsafe.Offsetof(limitsHeader{}.crc32))
	limitsOffIdentity = int(unsafe.Offsetof(limitsHeader{}.identity))
	identitySize      = int(unsafe.Sizeof(limitsHeader{}.identity))

	recordOffSequence = int(unsafe.Offsetof(limitsRecord{}.sequence))
	recordOffCRC      = int(unsafe.Offsetof(limitsRecord{}.crc32))
	recordOffUUID     = int(unsafe.Offsetof(limitsRecord{}.uuid))
	recordOffMemory   = int(unsafe.Offsetof(limitsRecord{}.memoryLimitBytes))
	recordOffCore     = int(unsafe.Offsetof(limitsRecord{}.corePercent))
	recordOffCoreSoft = int(unsafe.Offsetof(limitsRecord{}.coreSoftPercent))
	recordOffPolicy   = int(unsafe.Offsetof(limitsRecord{}.policy))
	recordOffPriority = int(unsafe.Offsetof(limitsRecord{}.priority))
	recordOffFlags    = int(unsafe.Offsetof(limitsRecord{}.flags))
	recordOffContext  = int(unsafe.Offsetof(limitsRecord{}.contextBytes))
	recordOffName     = int(unsafe.Offsetof(limitsRecord{}.name))
	recordNameSize    = int(unsafe.Sizeof(limitsRecord{}.name))
	recordOffPage     = int(unsafe.Offsetof(limitsRecord{}.pageKiB))
	recordOffSmall    = int(unsafe.Offsetof(limitsRecord{}.smallKiB))
	recordOffResidue  = int(unsafe.Offsetof(limitsRecord{}.residueBytes))
	recordOffPhysical = int(unsafe.Offsetof(limitsRecord{}.physicalBytes))

	usageOffLayout     = int(unsafe.Offsetof(usageHeader{}.layout))
	usageOffHeader     = int(unsafe.Offsetof(usageHeader{}.headerBytes))
	usageOffSlot       = int(unsafe.Offsetof(usageHeader{}.slotBytes))
	usageOffSlots      = int(unsafe.Offsetof(usageHeader{}.slotCount))
	usageOffCellOffset = int(unsafe.Offsetof(usageHeader{}.cellOffset))
	usageOffCell       = int(unsafe.Offsetof(usageHeader{}.cellBytes))
	usageOffCells      = int(unsafe.Offsetof(usageHeader{}.cellCount))
	usageOffDevices    = int(unsafe.Offsetof(usageHeader{}.devices))
	usageOffMIG        = int(unsafe.Offsetof(usageHeader{}.mig))
	usageOffUUID       = int(unsafe.Offsetof(usageHeader{}.uuids))
	usageOffHighWater  = int(unsafe.Offsetof(usageHeader{}.highWater))
	usageOffCompute    = int(unsafe.Offsetof(usageHeader{}.compute))
	usageComputeSize   = int(unsafe.Sizeof(usageCompute{}))

	slotOffOwner    = int(unsafe.Offsetof(usageSlot{}.owner))
	slotOffPID      = int(unsafe.Offsetof(usageSlot{}.pid))
	slotOffExported = int(unsafe.Offsetof(usageSlot{}.exported))

	cellOffCommitted = int(unsafe.Offsetof(usageCell{}.committed))
	cellOffTentative = int(unsafe.Offsetof(usageCell{}.tentative))
	cellOffContext   = int(unsafe.Offsetof(usageCell{}.context))
	cellOffPool      = int(unsafe.Offsetof(usageCell{}.pool))
	cellOffVMM       = int(unsafe.Offsetof(usageCell{}.vmm))
	cellOffGraph     = int(unsafe.Offsetof(usageCell{}.graph))
	cellOffArray     = int(unsafe.Offsetof(usageCell{}.array))
	cellOffSpilled   = int(unsafe.Offsetof(usageCell{}.spilled))

	computeOffBusy       = int(unsafe.Offsetof(usageCompute{}.busy))
	computeOffThrottled  = int(unsafe.Offsetof(usageCompute{}.throttled))
	computeOffLaunches   = int(unsafe.Offsetof(usageCompute{}.launches))
	computeOffLastLaunch = int(unsafe.Offsetof(usageCompute{}.lastLaunch))
	computeOffRefused    = int(unsafe.Offsetof(usageCompute{}.refused))
)

func recordAt(file []byte, i int) []byte {
	return file[limitsHeaderSize+i*limitsRecordSize:][:limitsRecordSize]
}
