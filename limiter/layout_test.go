package limiter

import (
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
		{"offsetof(struct vgpu_record, residue_bytes)", recordOffResidue},
		{"offsetof(struct vgpu_record, physical_bytes)", recordOffPhysical},
		{"offsetof(struct vgpu_record, core_correction)", recordOffCorrection},
		{"offsetof(struct vgpu_record, core_elastic_percent)", recordOffElastic},
		{"VGPU_RECORD_CONTENDED", recordFlagContended},
		{"VGPU_RECORD_BLOCKED", recordFlagBlocked},
		{"offsetof(struct vgpu_usage, buckets)", usageOffBuckets},
		{"sizeof(struct vgpu_bucket)", usageBucketSize},
		{"offsetof(struct vgpu_bucket, earned)", bucketOffEarned},
		{"offsetof(struct vgpu_bucket, spent)", bucketOffSpent},
		{"offsetof(struct vgpu_bucket, refilled)", bucketOffRefilled},
		{"offsetof(struct vgpu_bucket, throttled)", bucketOffThrottled},
		{"offsetof(struct vgpu_bucket, launches)", bucketOffLaunches},
		{"offsetof(struct vgpu_bucket, last_launch)", bucketOffLastLaunch},
		{"offsetof(struct vgpu_bucket, refused)", bucketOffRefused},
		{"sizeof(struct vgpu_usage)", int(usageSize)},
		{"offsetof(struct vgpu_usage, slots)", usageHeaderSize},
		{"VGPU_SLOT_COUNT", usageSlots},
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
		{"offsetof(struct vgpu_slot, owner)", slotOffOwner},
		{"offsetof(struct vgpu_slot, pid)", slotOffPID},
		{"offsetof(struct vgpu_slot, start_time)", 8},
		{"offsetof(struct vgpu_slot, pid_ns)", 16},
		{"offsetof(struct vgpu_slot, exports_byte)", 24},
		{"offsetof(struct vgpu_slot, exports_dev)", 32},
		{"offsetof(struct vgpu_slot, exports_ino)", 40},
		{"offsetof(struct vgpu_slot, imports)", 48},
		{"offsetof(struct vgpu_slot, exported)", 1152},
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
