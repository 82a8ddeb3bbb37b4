package limiter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCreateAndReadUsage(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	path := filepath.Join(t.TempDir(), "usage")
	require.NoError(t, CreateUsage(path, []string{testGPU, testMIG}))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), info.Mode(), "whatever the umask")
	assert.Equal(t, int64(usageSize), info.Size())
	assert.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(64<<10), "sparse")
	u, err := ReadUsage(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(Usage{Devices: []DeviceUsage{{UUID: testGPU}, {UUID: testMIG}}}, u))

	assert.ErrorIs(t, CreateUsage(path, []string{testGPU}), os.ErrExist)
	assert.ErrorIs(t, CreateUsage(path+"2", nil), ErrLimits)
	assert.ErrorIs(t, CreateUsage(path+"2", []string{"GPU-1"}), ErrLimits)
	assert.ErrorIs(t, CreateUsage(path+"2", make([]string, 17)), ErrLimits)
	assert.NoFileExists(t, path+"2")
}

// slot writes what a process would.
func slot(file []byte, i int, owner uint32, committed ...uint64) {
	at := file[usageHeaderSize+i*usageSlotSize:]
	le.PutUint32(at[slotOffOwner:], owner)
	le.PutUint32(at[slotOffPID:], uint32(100+i))
	for d, v := range committed {
		le.PutUint64(at[usageCellOffset+d*usageCellSize+cellOffCommitted:], v)
	}
	le.PutUint32(file[usageOffHighWater:], max(le.Uint32(file[usageOffHighWater:]), uint32(i+1)))
}

func usageImage(t testing.TB) []byte {
	t.Helper()
	header, err := newUsageHeader([]string{testGPU, testMIG})
	require.NoError(t, err)
	return append(bytesOf(header), make([]byte, int(usageSize)-usageHeaderSize)...)
}

func TestReadUsageSums(t *testing.T) {
	file := usageImage(t)
	slot(file, 0, 100, 5, 7)
	slot(file, 1, 0, 1000)                 // never owned: garbage of a claim that died
	slot(file, 3, futexOwnerDied, 30)      // died, its lock is held by a child
	slot(file, 4, futexOwnerDied, 300)     // died, gone
	slot(file, 9, 101, ^uint64(0)-2, 1<<3) // nonsense, saturates
	slot(file, 1023, 102)
	u, err := decodeUsage(bytes.NewReader(file), func(i int) bool { return i == 4 })
	require.NoError(t, err)
	assert.Equal(t, 4, u.Processes)
	assert.Equal(t, ^uint64(0), u.Devices[0].UsedBytes)
	assert.Equal(t, 3, u.Devices[0].Processes)
	assert.Equal(t, uint64(15), u.Devices[1].UsedBytes)
}

// Of a process that is checkpointed the GPU has what it has exported.
func TestReadUsageOfCheckpointed(t *testing.T) {
	file := usageImage(t)
	slot(file, 0, 100, 5, 7)
	slot(file, 1, 101|ownerSuspended, 1000, 13)
	slot(file, 2, futexOwnerDied|ownerSuspended, 1000) // being torn down
	for i, exported := range map[int]uint64{1: 300, 2: 2000} {
		at := file[usageHeaderSize+i*usageSlotSize:]
		le.PutUint64(at[slotOffExported:], exported)
		le.PutUint64(at[usageCellOffset+cellOffVMM:], 500)
		le.PutUint64(at[usageCellOffset+cellOffSpilled:], 40)
	}
	u, err := decodeUsage(bytes.NewReader(file), func(int) bool { return false })
	require.NoError(t, err)
	assert.Equal(t, 3, u.Processes)
	assert.Equal(t, DeviceUsage{UUID: testGPU, UsedBytes: 1305, VMMBytes: 1300, HeldBytes: 1300, Processes: 1}, u.Devices[0])
	assert.Equal(t, DeviceUsage{UUID: testMIG, UsedBytes: 7, Processes: 1}, u.Devices[1])
}

// A process of the container has found that a descriptor holds what a dead one exported.
func TestReadUsageOfHeldExports(t *testing.T) {
	file := usageImage(t)
	slot(file, 0, 100, 5)
	for i, committed := range [][]uint64{{300, 40}, {^uint64(0)}, {7}} {
		slot(file, 1+i, futexOwnerDied, committed...)
		le.PutUint32(file[usageHeaderSize+(1+i)*usageSlotSize+slotOffPID:], 0)
		for d, v := range committed {
			le.PutUint64(file[usageHeaderSize+(1+i)*usageSlotSize+usageCellOffset+d*usageCellSize+cellOffVMM:], v)
		}
	}
	for _, test := range []struct {
		gone func(int) bool
		held uint64
	}{
		{func(i int) bool { return i == 1 || i == 3 }, 307},
		{func(int) bool { return true }, ^uint64(0)},
	} {
		u, err := decodeUsage(bytes.NewReader(file), test.gone)
		require.NoError(t, err)
		assert.Equal(t, test.held, u.Devices[0].HeldBytes)
		assert.Equal(t, ^uint64(0), u.Devices[0].UsedBytes, "nonsense, saturates")
		assert.Equal(t, DeviceUsage{UUID: testMIG, UsedBytes: 40, VMMBytes: 40, HeldBytes: 40}, u.Devices[1])
	}
	le.PutUint32(file[usageHeaderSize+slotOffOwner:], 0)
	u, err := decodeUsage(bytes.NewReader(file), func(int) bool { return true })
	require.NoError(t, err)
	assert.Equal(t, DeviceUsage{UUID: testGPU}, u.Devices[0], "no process lives that has looked")
}

// What processes share by legacy IPC: memory that its maker has left, and others have open.
func TestReadUsageOfLeftMemory(t *testing.T) {
	file := usageImage(t)
	slot(file, 0, 100, 5)
	le.PutUint32(file[unsafe.Offsetof(usageHeader{}.ipcHigh):], 5)
	const left, open = 4, 2
	for i, state := range []uint64{left | 3<<17, left | 1<<3 | 7<<17 | 900<<7 | 99<<50, open | 50<<17, left | 15<<3 | 9<<17, left | 1<<17, left | 100<<17} {
		le.PutUint64(file[int(usageIPC)+8*i:], state)
	}
	u, err := decodeUsage(bytes.NewReader(file), func(int) bool { return false })
	require.NoError(t, err)
	assert.Equal(t, DeviceUsage{UUID: testGPU, UsedBytes: 5 + 4*512, HeldBytes: 4 * 512, Processes: 1}, u.Devices[0])
	assert.Equal(t, DeviceUsage{UUID: testMIG, UsedBytes: 7 * 512, HeldBytes: 7 * 512}, u.Devices[1])

	le.PutUint32(file[unsafe.Offsetof(usageHeader{}.ipcHigh):], ^uint32(0))
	u, err = decodeUsage(bytes.NewReader(file), func(int) bool { return false })
	require.NoError(t, err)
	assert.EqualValues(t, 104*512, u.Devices[0].HeldBytes)

	le.PutUint32(file[usageHeaderSize+slotOffOwner:], 0)
	u, err = decodeUsage(bytes.NewReader(file), func(int) bool { return true })
	require.NoError(t, err)
	assert.Equal(t, DeviceUsage{UUID: testGPU}, u.Devices[0], "no process has it open")
}

// What a checkpointed process shares counts, whether others have it open or not.
func TestReadUsageOfMemoryOfACheckpointedMaker(t *testing.T) {
	file := usageImage(t)
	slot(file, 0, 100, 5)
	slot(file, 1, 101|ownerSuspended, 1000)
	slot(file, 2, futexOwnerDied|ownerSuspended, 1000)
	le.PutUint32(file[unsafe.Offsetof(usageHeader{}.ipcHigh):], 6)
	const making, open, leaving, none = 1, 2, 3, 7
	for i, state := range []uint64{making | 1<<7 | 1<<17, open | 1<<7 | 2<<17, leaving | 1<<7 | 4<<17, open | 2<<7 | 8<<17, open | 16<<17, none | 900<<7 | 32<<17} {
		le.PutUint64(file[int(usageIPC)+8*i:], state)
	}
	for ended, held := range map[bool]uint64{false: 14 * 512, true: 6 * 512} {
		u, err := decodeUsage(bytes.NewReader(file), func(int) bool { return ended })
		require.NoError(t, err)
		assert.Equal(t, DeviceUsage{UUID: testGPU, UsedBytes: 5 + held, HeldBytes: held, Processes: 1}, u.Devices[0])
	}
}

func TestReadUsageLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	file := usageImage(t)
	slot(file, 0, futexOwnerDied, 30)
	slot(file, 1, futexOwnerDied, 300)
	require.NoError(t, os.WriteFile(path, file, 0o666))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: usageLockSlow + 1, Len: 1}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	u, err := ReadUsage(path)
	require.NoError(t, err)
	assert.Equal(t, uint64(30), u.Devices[0].UsedBytes, "a child still has the driver's files")
}

func TestReadSpoiltUsage(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"empty":        func(b []byte) []byte { return nil },
		"header only":  func(b []byte) []byte { b[usageOffHighWater] = 1; return b[:usageHeaderSize] },
		"short header": func(b []byte) []byte { return b[:1000] },
		"magic":        func(b []byte) []byte { b[3] = 0; return b },
		"layout":       func(b []byte) []byte { b[usageOffLayout] = 9; return b },
		"slot size":    func(b []byte) []byte { b[usageOffSlot] = 1; return b },
		"no GPUs":      func(b []byte) []byte { b[usageOffDevices] = 0; return b },
		"many GPUs":    func(b []byte) []byte { b[usageOffDevices] = 0xff; return b },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "usage")
			require.NoError(t, os.WriteFile(path, spoil(usageImage(t)), 0o666))
			_, err := ReadUsage(path)
			require.ErrorIs(t, err, ErrUsage)
			assert.ErrorContains(t, err, path)
		})
	}
	t.Run("a high water above all slots", func(t *testing.T) {
		file := usageImage(t)
		slot(file, 1000, 1, 5)
		le.PutUint32(file[usageOffHighWater:], ^uint32(0))
		u, err := decodeUsage(bytes.NewReader(file), func(int) bool { return true })
		require.NoError(t, err)
		assert.Equal(t, uint64(5), u.Devices[0].UsedBytes)
	})
	t.Run("a pipe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, syscall.Mkfifo(path, 0o666))
		_, err := ReadUsage(path)
		assert.ErrorIs(t, err, ErrUsage)
	})
	t.Run("a link", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, os.WriteFile(path, usageImage(t), 0o666))
		require.NoError(t, os.Symlink(path, path+"2"))
		_, err := ReadUsage(path + "2")
		assert.Error(t, err)
	})
	_, err := ReadUsage(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// What another release has made is no damage, and nothing is read of it.
func TestUsageOfAnotherVersion(t *testing.T) {
	uuids := []string{"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"}
	made := filepath.Join(t.TempDir(), "usage")
	require.NoError(t, CreateUsage(made, uuids))
	image, err := os.ReadFile(made)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		change func([]byte) []byte
		other  bool
	}{
		"a newer layout":         {func(b []byte) []byte { b[usageOffLayout] = 2; return b }, true},
		"a newer name":           {func(b []byte) []byte { b[7] = '2'; return b }, true},
		"smaller":                {func(b []byte) []byte { b[usageOffLayout] = 2; return b[:64] }, true},
		"larger":                 {func(b []byte) []byte { b[usageOffLayout] = 2; return append(b, make([]byte, 4096)...) }, true},
		"other sizes in it":      {func(b []byte) []byte { b[usageOffLayout], b[usageOffSlot] = 2, 1; return b }, true},
		"no layout":              {func(b []byte) []byte { b[usageOffLayout] = 0; return b }, false},
		"unknown layout":         {func(b []byte) []byte { b[usageOffLayout+3] = 9; return b }, false},
		"unknown name":           {func(b []byte) []byte { b[7] = 'x'; return b }, false},
		"other sizes, this name": {func(b []byte) []byte { b[usageOffSlot] = 1; return b }, false},
		"too short for a layout": {func(b []byte) []byte { b[usageOffLayout] = 2; return b[:10] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "usage")
			content := test.change(bytes.Clone(image))
			require.NoError(t, os.WriteFile(path, content, 0o666))
			_, read := ReadUsage(path)
			_, again := new(Reader).Usage(path, uuids)
			for _, err := range []error{read, again, CheckUsage(path, uuids)} {
				assert.ErrorIs(t, err, ErrUsage)
				assert.Equal(t, test.other, errors.Is(err, ErrUsageVersion), err)
			}
			if !test.other {
				return
			}
			_, err := TrimUsage(path)
			require.NoError(t, err)
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(content, left), "what another version has made is not cut")
			require.NoError(t, os.Truncate(path, 100*usageSize))
			trimmed, err := TrimUsage(path)
			require.NoError(t, err)
			assert.True(t, trimmed, "but does not fill the node's directory")
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.EqualValues(t, mostUsageSize, info.Size())
		})
	}
}

// A tenant could fill the node's state directory by growing its own file.
func TestTrimUsage(t *testing.T) {
	blocks := func(path string) int64 {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	const header = 64 << 10 // of blocks, at most
	for _, test := range []struct {
		name    string
		bend    func(*os.File) error
		trimmed bool
	}{
		{"as it was made", func(*os.File) error { return nil }, false},
		{"grown by one byte", func(f *os.File) error { return f.Truncate(usageSize + 1) }, true},
		{"grown with data", func(f *os.File) error {
			_, err := f.WriteAt(make([]byte, 4<<20), usageSize)
			return err
		}, true},
		{"grown and sparse", func(f *os.File) error { return f.Truncate(1 << 40) }, true},
		{"a byte far behind its end", func(f *os.File) error {
			_, err := f.WriteAt([]byte{1}, 1<<40)
			return err
		}, true},
		{"shrunk by one byte", func(f *os.File) error { return f.Truncate(usageSize - 1) }, true},
		{"shrunk to its header", func(f *os.File) error { return f.Truncate(int64(usageHeaderSize)) }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "usage")
			require.NoError(t, CreateUsage(path, []string{testGPU}))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			require.NoError(t, test.bend(f))
			trimmed, err := TrimUsage(path)
			require.NoError(t, err)
			assert.Equal(t, test.trimmed, trimmed)
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, int64(usageSize), info.Size())
			assert.Less(t, blocks(path), int64(header), "sparse again")
			_, err = ReadUsage(path)
			assert.NoError(t, err, "and still what it was")
			trimmed, err = TrimUsage(path)
			require.NoError(t, err)
			assert.False(t, trimmed, "a second time")
		})
	}
	t.Run("emptied", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, os.WriteFile(path, nil, 0o666))
		trimmed, err := TrimUsage(path)
		require.NoError(t, err)
		assert.True(t, trimmed)
		_, err = ReadUsage(path)
		assert.ErrorIs(t, err, ErrUsage, "its header is gone")
	})
	t.Run("in use", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		file := usageImage(t)
		slot(file, 0, 100, 5, 7)
		require.NoError(t, os.WriteFile(path, append(file, 1), 0o666))
		trimmed, err := TrimUsage(path)
		require.NoError(t, err)
		assert.True(t, trimmed)
		u, err := ReadUsage(path)
		require.NoError(t, err)
		assert.Equal(t, uint64(5), u.Devices[0].UsedBytes)
	})
	t.Run("missing", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		_, err := TrimUsage(path)
		assert.ErrorIs(t, err, os.ErrNotExist)
		assert.NoFileExists(t, path)
	})
	t.Run("a link", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, os.WriteFile(path, []byte("another's"), 0o666))
		require.NoError(t, os.Symlink(path, path+"2"))
		trimmed, err := TrimUsage(path + "2")
		assert.Error(t, err)
		assert.False(t, trimmed)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "another's", string(text))
	})
	t.Run("a pipe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, syscall.Mkfifo(path, 0o666))
		_, err := TrimUsage(path)
		assert.ErrorIs(t, err, ErrUsage)
	})
	t.Run("a directory", func(t *testing.T) {
		_, err := TrimUsage(t.TempDir())
		assert.Error(t, err)
	})
}

func FuzzReadUsage(f *testing.F) {
	file := usageImage(f)
	slot(file, 0, 100, 5, 7)
	slot(file, 1, futexOwnerDied, 30)
	f.Add(file[:usageHeaderSize+4*usageSlotSize], uint32(3), uint32(0), []byte{})
	f.Add(file[:100], uint32(0), uint32(0), []byte{})
	f.Add(file[:usageHeaderSize+4*usageSlotSize], uint32(3), uint32(2), bytes.Repeat([]byte{4, 0, 6, 0, 0, 0, 0, 0}, 4))
	f.Fuzz(func(t *testing.T, file []byte, high, ipcHigh uint32, records []byte) {
		if len(file) >= usageHeaderSize {
			le.PutUint32(file[usageOffHighWater:], high)
			le.PutUint32(file[unsafe.Offsetof(usageHeader{}.ipcHigh):], ipcHigh)
		}
		if len(records) > 0 {
			file = append(append(file, make([]byte, max(int(usageIPC)-len(file), 0))...)[:usageIPC], records...)
		}
		u, err := decodeUsage(io.NewSectionReader(bytes.NewReader(file), 0, int64(len(file))), func(i int) bool { return i%2 == 0 })
		if err != nil {
			require.ErrorIs(t, err, ErrUsage)
			return
		}
		require.LessOrEqual(t, len(u.Devices), MaxDevices)
		require.LessOrEqual(t, u.Processes, usageSlots)
	})
}

func TestCheckUsage(t *testing.T) {
	gpus := []string{"GPU-0a000000-1111-2222-3333-444455556666", "MIG-0a000000-1111-2222-3333-444455556667"}
	write := func(at int64, data []byte) func(string) error {
		return func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(data, at)
			return err
		}
	}
	le := binary.LittleEndian
	for name, test := range map[string]struct {
		spoil func(path string) error
		gpus  []string
		want  string
	}{
		"as it was made":      {func(string) error { return nil }, gpus, ""},
		"of a GPU in capital": {func(string) error { return nil }, []string{"GPU-0A000000-1111-2222-3333-444455556666", gpus[1]}, ""},
		"of other GPUs":       {func(string) error { return nil }, []string{gpus[1], gpus[0]}, "header uuid 0 is not that of MIG-0a"},
		"of fewer GPUs":       {func(string) error { return nil }, gpus[:1], "header device_count is 2, not 1"},
		"text":                {func(path string) error { return os.WriteFile(path, []byte("x"), 0) }, gpus, "its size is 1 bytes, not 1314816"},
		"cut short":           {func(path string) error { return os.Truncate(path, 4096) }, gpus, "its size is 4096 bytes"},
		"cut and grown again": {func(path string) error { return os.WriteFile(path, make([]byte, usageSize), 0) }, gpus, "magic number"},
		"made longer":         {func(path string) error { return os.Truncate(path, 1<<40) }, gpus, "its size is 1099511627776 bytes"},
		"another layout":      {write(int64(usageOffLayout), []byte{9}), gpus, "it is GPUSUSE1 of layout 9"},
		"another GPU":         {write(int64(usageOffUUID), []byte{1}), gpus, "header uuid 0 is not that of GPU-0a"},
		"a GPU for a MIG one": {write(int64(usageOffMIG), []byte{0}), gpus, "header uuid 1 is not that of MIG-0a"},
		"the largest number": {func(path string) error {
			slot := make([]byte, usageSlotSize)
			le.PutUint32(slot, 7)
			le.PutUint64(slot[usageCellOffset:], math.MaxUint64)
			if err := write(int64(usageOffHighWater), []byte{1})(path); err != nil {
				return err
			}
			return write(int64(usageHeaderSize), slot)(path)
		}, gpus, "18446744073709551615 bytes in use, more than possible"},
		"a high-water mark beyond the end": {write(int64(usageOffHighWater), []byte{255, 255, 255, 255}), gpus, ""},
		"a link": {func(path string) error {
			if err := os.Rename(path, path+"2"); err != nil {
				return err
			}
			return os.Symlink(path+"2", path)
		}, gpus, "too many levels"},
		"gone": {os.Remove, gpus, "no such file"},
	} {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, CreateUsage(path, gpus))
		require.NoError(t, test.spoil(path), name)
		err := CheckUsage(path, test.gpus)
		if test.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, test.want, name)
		}
	}
}

func TestUsageInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	_, err := UsageInUse(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, CreateUsage(path, []string{"GPU-aaaaaaaa-0000-4000-8000-000000000001"}))
	inUse := func() bool {
		used, err := UsageInUse(path)
		require.NoError(t, err)
		return used
	}
	require.False(t, inUse())

	// A tenant writes an owner into a slot: that is not a process.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{1, 2, 3, 0}, int64(usageHeaderSize))
	require.NoError(t, err)
	require.False(t, inUse())

	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1 + 700, Len: 1}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	require.True(t, inUse())
	require.NoError(t, f.Close())
	require.False(t, inUse())
}
