package limiter

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	testGPU = "GPU-0a1b2c3d-0102-4000-8000-0000000000ff"
	testMIG = "MIG-0a1b2c3d-0102-4000-8000-0000000000fe"
)

func itoa(n int) string { return strconv.Itoa(n) }

func testLimits() Limits {
	return Limits{
		Oversubscribe: true,
		Devices: []DeviceLimit{
			{UUID: testGPU, MemoryLimitBytes: 8000 << 20, CorePercent: 30, CoreSoftPercent: 60, Policy: PolicyForce,
				Priority: PriorityLow, ContextBytes: 520 << 20},
			{UUID: testMIG, MemoryLimitBytes: 1},
		},
	}
}

func TestWriteAndReadLimits(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	path := filepath.Join(t.TempDir(), "limits")
	require.NoError(t, WriteLimits(path, testLimits()))
	got, err := ReadLimits(path)
	require.NoError(t, err)
	want := testLimits()
	want.Generation = 1
	assert.Empty(t, cmp.Diff(want, got))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o444), info.Mode(), "whatever the umask")
	assert.Equal(t, int64(limitsSize), info.Size())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no temporary file is left")
}

func TestInvalidLimits(t *testing.T) {
	bend := func(f func(*Limits)) Limits {
		l := testLimits()
		f(&l)
		return l
	}
	for _, test := range []struct {
		name   string
		limits Limits
		why    string
	}{
		{"no GPUs", Limits{}, "0 GPUs"},
		{"17 GPUs", Limits{Devices: make([]DeviceLimit, 17)}, "17 GPUs"},
		{"a GPU twice", bend(func(l *Limits) { l.Devices[1].UUID = strings.ToUpper(testGPU[:3]) + testGPU[3:] }), "twice"},
		{"no memory", bend(func(l *Limits) { l.Devices[0].MemoryLimitBytes = 0 }), "memory limit is 0"},
		{"memory above 2^56", bend(func(l *Limits) { l.Devices[0].MemoryLimitBytes = 1<<56 + 1 }), "2^56"},
		{"core", bend(func(l *Limits) { l.Devices[0].CorePercent = 101 }), "core percent 101"},
		{"soft core", bend(func(l *Limits) { l.Devices[0].CoreSoftPercent = 101 }), "soft core percent 101"},
		{"policy", bend(func(l *Limits) { l.Devices[0].Policy = 3 }), "policy 3"},
		{"priority", bend(func(l *Limits) { l.Devices[0].Priority = 2 }), "priority 2"},
		{"uuid without prefix", bend(func(l *Limits) { l.Devices[0].UUID = testGPU[4:] }), "does not start with"},
		{"uuid too short", bend(func(l *Limits) { l.Devices[0].UUID = testGPU[:39] }), "8-4-4-4-12"},
		{"uuid too long", bend(func(l *Limits) { l.Devices[0].UUID += "0" }), "8-4-4-4-12"},
		{"uuid with other letters", bend(func(l *Limits) { l.Devices[0].UUID = "GPU-0a1b2c3d-0102-4000-8000-0000000000fg" }), "invalid byte"},
		{"uuid with dashes elsewhere", bend(func(l *Limits) { l.Devices[0].UUID = "GPU-0a1b2c3-d0102-4000-8000-0000000000ff" }), "8-4-4-4-12"},
		{"empty uuid", bend(func(l *Limits) { l.Devices[0].UUID = "" }), "does not start with"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits")
			err := WriteLimits(path, test.limits)
			require.ErrorIs(t, err, ErrLimits)
			assert.ErrorContains(t, err, test.why)
			assert.ErrorContains(t, err, path)
			assert.NoFileExists(t, path)
		})
	}
}

func TestReadDamagedLimits(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
		why    string
	}{
		{"empty", func(b []byte) []byte { return nil }, "0 bytes long"},
		{"short", func(b []byte) []byte { return b[:4095] }, "4095 bytes long"},
		{"long", func(b []byte) []byte { return append(b, 0) }, "4097 bytes long"},
		{"magic", func(b []byte) []byte { b[0] = 0; return b }, "magic"},
		{"layout", func(b []byte) []byte { b[8] = 2; return b }, "layout"},
		{"count of 0", func(b []byte) []byte { b[20] = 0; return seal(b) }, "record_count is 0"},
		{"count of 17", func(b []byte) []byte { b[20] = 17; return seal(b) }, "record_count is 17"},
		{"header changed", func(b []byte) []byte { b[32] = 0; return b }, "crc32"},
		{"record changed", func(b []byte) []byte { b[128+24]++; return b }, "record 0: crc32"},
		{"second record changed", func(b []byte) []byte { b[256+24]++; return b }, "record 1: crc32"},
		{"record half-written", func(b []byte) []byte { b[128]++; return b }, "record 0: sequence 1"},
		{"name of another", func(b []byte) []byte { b[128+64+39] = '0'; return sealRecord(b) }, "name"},
		{"no memory", func(b []byte) []byte { copy(b[128+24:], make([]byte, 8)); return sealRecord(b) }, "memory limit is 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits")
			file, err := encodeLimits(testLimits(), 1)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, test.damage(bytesOf(file)), 0o644))
			_, err = ReadLimits(path)
			require.Error(t, err)
			assert.ErrorContains(t, err, test.why)
			assert.ErrorContains(t, err, path)
		})
	}
	_, err := ReadLimits(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func seal(file []byte) []byte {
	le.PutUint32(file[limitsOffCRC:], (*limitsHeader)(unsafe.Pointer(&file[0])).checksum())
	return file
}

func sealRecord(file []byte) []byte {
	r := recordAt(file, 0)
	le.PutUint32(r[recordOffCRC:], crc32.ChecksumIEEE(r[recordOffUUID:]))
	return file
}

func TestUpdateLimits(t *testing.T) {
	dir := claimDir(t)
	path := LimitsPath(dir)
	require.NoError(t, WriteLimits(path, testLimits()))
	inode := inodeOf(t, path)
	want := testLimits()
	want.Devices[0].MemoryLimitBytes = 1 << 30
	want.Devices[1].CorePercent = 7
	require.NoError(t, UpdateLimits(dir, want))
	got, err := ReadLimits(path)
	require.NoError(t, err)
	want.Generation = 2
	assert.Empty(t, cmp.Diff(want, got))
	assert.Equal(t, inode, inodeOf(t, path), "in place: containers have it mapped")

	for name, bend := range map[string]func(*Limits){
		"one GPU less":    func(l *Limits) { l.Devices = l.Devices[:1] },
		"another order":   func(l *Limits) { l.Devices[0], l.Devices[1] = l.Devices[1], l.Devices[0] },
		"another GPU":     func(l *Limits) { l.Devices[0].UUID = "GPU-00000000-0102-4000-8000-0000000000ff" },
		"oversubscribed?": func(l *Limits) { l.Oversubscribe = false },
		"invalid":         func(l *Limits) { l.Devices[0].MemoryLimitBytes = 0 },
	} {
		l := testLimits()
		bend(&l)
		assert.ErrorContains(t, UpdateLimits(dir, l), dir, name)
	}
	got, err = ReadLimits(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(want, got), "a refused update changes nothing")
}

// The agent was killed while it rewrote a record: the next update completes it.
func TestUpdateAfterKilledWriter(t *testing.T) {
	dir := claimDir(t)
	path := LimitsPath(dir)
	file, err := encodeLimits(testLimits(), 1)
	require.NoError(t, err)
	file.records[0].sequence++
	file.records[0].memoryLimitBytes++
	require.NoError(t, os.WriteFile(path, bytesOf(file), 0o644))
	require.NoError(t, UpdateLimits(dir, testLimits()))
	got, err := ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, testLimits().Devices, got.Devices)
}

func TestConcurrentUpdates(t *testing.T) {
	dir := claimDir(t)
	path := LimitsPath(dir)
	require.NoError(t, WriteLimits(path, testLimits()))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			l := testLimits()
			for n := range 50 {
				l.Devices[0].MemoryLimitBytes = uint64(1 + i*50 + n)
				err := UpdateLimits(dir, l)
				for errors.Is(err, context.DeadlineExceeded) { // the others had the lock for as long as a writer waits
					err = UpdateLimits(dir, l)
				}
				assert.NoError(t, err)
			}
		}()
	}
	wg.Wait()
	got, err := ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(401), got.Generation)
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func FuzzReadLimits(f *testing.F) {
	limits, err := encodeLimits(testLimits(), 3)
	require.NoError(f, err)
	file := bytesOf(limits)
	f.Add(file, uint32(0))
	f.Add(file[:100], uint32(0))
	f.Add(file, uint32(1))
	f.Fuzz(func(t *testing.T, file []byte, fix uint32) {
		if len(file) == limitsSize && fix%2 == 1 { // let it past the checksums
			for i := range MaxDevices {
				r := recordAt(file, i)
				le.PutUint32(r[recordOffCRC:], crc32.ChecksumIEEE(r[recordOffUUID:]))
			}
			seal(file)
		}
		var r Reader
		copy(bytesOf(&r.limits), file)
		whole, residueErr := r.decodeResidue()
		require.LessOrEqual(t, len(r.residue), MaxDevices)
		_, l, err := decodeLimits(file)
		if err != nil {
			return
		}
		require.NoError(t, residueErr)
		require.True(t, whole)
		require.Len(t, r.residue, len(l.Devices))
		require.NoError(t, l.validate())
		again, err := encodeLimits(l, l.Generation)
		require.NoError(t, err)
		_, back, err := decodeLimits(bytesOf(again))
		require.NoError(t, err)
		require.Equal(t, l, back)
	})
}
