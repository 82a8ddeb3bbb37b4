package limiter

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// usageFile is one that a container has written.
func usageFile(t testing.TB, spoil func(file []byte) []byte) (path string) {
	file := usageImage(t)
	slot(file, 0, 100, 5, 7)
	slot(file, 2, 101, 50, 0)
	if spoil != nil {
		file = spoil(file)
	}
	path = filepath.Join(t.TempDir(), "usage")
	require.NoError(t, os.WriteFile(path, file, 0o666))
	return path
}

var testGPUs = []string{testGPU, testMIG}

// One Reader for all of a node's containers: what it read of one is in no other's answer.
func TestReader(t *testing.T) {
	var r Reader
	full := usageFile(t, func(file []byte) []byte { slot(file, 900, 7, 1<<40, 1<<40); return file })
	u, err := r.Usage(full, testGPUs)
	require.NoError(t, err)
	assert.Equal(t, uint64(1<<40+55), u.Devices[0].UsedBytes)
	assert.Equal(t, 3, u.Processes)

	u, err = r.Usage(usageFile(t, nil), testGPUs)
	require.NoError(t, err)
	want, err := ReadUsage(usageFile(t, nil))
	require.NoError(t, err)
	want.Devices[0].UUID, want.Devices[1].UUID = "", ""
	assert.Equal(t, want, *u)

	_, err = r.Usage(usageFile(t, nil), nil)
	require.NoError(t, err, "of any GPUs")
	u, err = r.Usage(filepath.Join(t.TempDir(), "none"), testGPUs)
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.Zero(t, u.Processes)
}

func TestReaderOfSpoiltUsage(t *testing.T) {
	for _, test := range []struct {
		name   string
		spoil  func(file []byte) []byte
		counts bool // the readable part is returned
	}{
		{"emptied", func([]byte) []byte { return nil }, false},
		{"cut in its slots", func(b []byte) []byte { return b[:usageHeaderSize+usageSlotSize] }, false},
		{"cut behind its slots", func(b []byte) []byte { return b[:usageHeaderSize+10*usageSlotSize] }, true},
		{"grown", func(b []byte) []byte { return append(b, 1) }, true},
		{"another number of GPUs", func(b []byte) []byte { b[usageOffDevices] = 1; return b }, false},
		{"another GPU", func(b []byte) []byte { b[usageOffUUID] ^= 1; return b }, false},
		{"a GPU that was a MIG device", func(b []byte) []byte { b[usageOffMIG] = 0; return b }, false},
		{"noise", func(b []byte) []byte { return noise(len(b)) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r Reader
			path := usageFile(t, test.spoil)
			u, err := r.Usage(path, testGPUs)
			require.ErrorIs(t, err, ErrUsage)
			assert.ErrorContains(t, err, path)
			if test.counts {
				assert.Equal(t, uint64(55), u.Devices[0].UsedBytes)
			} else {
				assert.Zero(t, u.Processes)
			}
		})
	}
	t.Run("a pipe", func(t *testing.T) {
		var r Reader
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, syscall.Mkfifo(path, 0o666))
		_, err := r.Usage(path, testGPUs)
		require.ErrorIs(t, err, ErrUsage)
	})
	t.Run("a link", func(t *testing.T) {
		var r Reader
		path := usageFile(t, nil)
		require.NoError(t, os.Symlink(path, path+"2"))
		_, err := r.Usage(path+"2", testGPUs)
		require.Error(t, err)
	})
}

func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Whatever a container writes where, the answer is bounded, and the same as ReadUsage's.
func TestReaderProperty(t *testing.T) {
	var r Reader
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		header, err := newUsageHeader(testGPUs)
		require.NoError(t, err)
		file := append(bytesOf(header), make([]byte, 20*usageSlotSize)...)
		for range rapid.IntRange(0, 20).Draw(t, "writes") {
			at := rapid.IntRange(0, len(file)-8).Draw(t, "at")
			le.PutUint64(file[at:], rapid.Uint64().Draw(t, "value"))
		}
		le.PutUint32(file[usageOffHighWater:], rapid.Uint32Range(0, 30).Draw(t, "high water"))
		path := filepath.Join(dir, "usage")
		require.NoError(t, os.WriteFile(path, file, 0o600))
		require.NoError(t, os.Truncate(path, rapid.Int64Range(0, usageSize+1).Draw(t, "size")))
		got, err := r.Usage(path, nil)
		want, wantErr := ReadUsage(path)
		require.LessOrEqual(t, got.Processes, MaxProcesses)
		require.LessOrEqual(t, len(got.Devices), MaxDevices)
		if wantErr == nil {
			for i := range want.Devices {
				want.Devices[i].UUID = ""
			}
			require.Equal(t, want, *got)
		} else {
			require.Error(t, err)
			require.Zero(t, got.Processes)
		}
	})
}

func TestReaderOfResidue(t *testing.T) {
	var r Reader
	dir := claimDir(t)
	path := LimitsPath(dir)
	require.NoError(t, WriteLimits(path, Limits{Devices: []DeviceLimit{{UUID: testGPU, MemoryLimitBytes: 1 << 30}, {UUID: testMIG, MemoryLimitBytes: 1 << 30}}}))
	residue := []uint64{77, 5}
	require.NoError(t, UpdateResidue(dir, residue))
	got, err := r.Residue(path)
	require.NoError(t, err)
	assert.Equal(t, residue, got)

	file, err := os.ReadFile(path)
	require.NoError(t, err)
	half := filepath.Join(t.TempDir(), "half")
	recordAt(file, 0)[recordOffSequence] |= 1
	require.NoError(t, os.WriteFile(half, file, 0o600))
	got, err = r.Residue(half)
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 5}, got, "one record's writer was killed")

	require.NoError(t, os.Truncate(half, 100))
	_, err = r.Residue(half)
	require.Error(t, err)
	_, err = r.Residue(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func BenchmarkReader(b *testing.B) {
	var r Reader
	path := usageFile(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Usage(path, testGPUs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadUsage(b *testing.B) {
	path := usageFile(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadUsage(path); err != nil {
			b.Fatal(err)
		}
	}
}
