//go:build root

package creaders

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

var le = binary.LittleEndian

const (
	record     = 128 // a record's bytes, and a header's
	gpuUUID    = "GPU-00000001-5151-4000-8000-00000000000"
	ceiling    = 1 << 56
	ownerDied  = 0x40000000
	fuzzedCell = 1
)

// files makes the two files of a container with three GPUs.
func files(f *testing.F) (limits, usage *os.File) {
	dir := f.TempDir()
	var l limiter.Limits
	for i := range 3 {
		l.Devices = append(l.Devices, limiter.DeviceLimit{UUID: gpuUUID + fmt.Sprint(i), MemoryLimitBytes: 1 << 30, CorePercent: 30})
	}
	limitsPath, usagePath := filepath.Join(dir, "limits"), filepath.Join(dir, "usage")
	require.NoError(f, limiter.WriteLimits(limitsPath, l))
	require.NoError(f, limiter.CreateUsage(usagePath, l.UUIDs()))
	require.NoError(f, SetPaths(limitsPath, usagePath))
	require.NoError(f, os.Chmod(limitsPath, 0o644))
	open := func(path string) *os.File {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(f, err)
		f.Cleanup(func() { file.Close() })
		return file
	}
	return open(limitsPath), open(usagePath)
}

// seal makes the checksums of a limits file right.
func seal(file []byte) {
	for at := record; at+record <= len(file); at += record {
		le.PutUint32(file[at+4:], crc32.ChecksumIEEE(file[at+8:at+record]))
	}
	le.PutUint32(file[36:], crc32.Update(crc32.ChecksumIEEE(file[:24]), crc32.IEEETable, file[32:36]))
}

// What the host may have written, or a container has put in its place: a process is denied the
// GPU or has limits within their bounds, and the Go reader accepts no file that C refuses.
func FuzzLimits(f *testing.F) {
	limits, _ := files(f)
	good := make([]byte, LimitsSize)
	_, err := limits.ReadAt(good, 0)
	require.NoError(f, err)
	f.Add(good, false)
	f.Add(good[:200], true)
	f.Add(append(bytes.Clone(good), 0), true)
	f.Add(bytes.Repeat([]byte{0xff}, LimitsSize), true)
	f.Fuzz(func(t *testing.T, file []byte, sealed bool) {
		if len(file) > 2*LimitsSize {
			return
		}
		file = bytes.Clone(file)
		if sealed && len(file) == LimitsSize {
			copy(file, good[:24]) // past the header's constants, with its own number of records
			le.PutUint32(file[20:], le.Uint32(file[20:])%20)
			seal(file)
		}
		require.NoError(t, limits.Truncate(int64(len(file))))
		_, err := limits.WriteAt(file, 0)
		require.NoError(t, err)
		gpus, ok := Limits()
		for _, c := range gpus {
			require.NotZero(t, c.Bytes)
			require.LessOrEqual(t, c.Bytes, uint64(ceiling))
			require.LessOrEqual(t, c.Context, uint64(ceiling))
			require.LessOrEqual(t, c.Residue, uint64(ceiling))
			require.LessOrEqual(t, c.Physical, c.Bytes)
			require.LessOrEqual(t, c.Room, c.Bytes)
			require.LessOrEqual(t, max(c.Percent, c.SoftPercent), uint8(100))
		}
		host, err := limiter.ReadLimits(limits.Name())
		if err != nil {
			return
		}
		require.True(t, ok, "the host reads it and the container doesn't")
		require.Len(t, gpus, len(host.Devices))
		for i, d := range host.Devices {
			require.Equal(t, min(d.MemoryLimitBytes, ceiling), gpus[i].Bytes)
		}
	})
}

// Other processes of the container have written into the usage file: the sums are those of the
// file, they saturate, and no number in it is an index that leaves the file.
func FuzzUsage(f *testing.F) {
	limits, usage := files(f)
	require.FileExists(f, limits.Name())
	good := make([]byte, UsageHeader)
	_, err := usage.ReadAt(good, 0)
	require.NoError(f, err)
	slot := make([]byte, 3*SlotSize)
	le.PutUint32(slot, 1)
	le.PutUint32(slot[SlotSize:], ownerDied|7)
	le.PutUint32(slot[SlotSize+4:], 1)
	for _, at := range []int{0, SlotSize, 2 * SlotSize} {
		le.PutUint64(slot[at+SlotHeader+fuzzedCell*CellSize:], ^uint64(0)/2)
	}
	f.Add([]byte(nil), slot, uint32(3), uint16(0))
	f.Add([]byte(nil), slot[:1000], ^uint32(0), uint16(1023))
	f.Add(good[:64], slot, uint32(1024), uint16(500))
	suspended := bytes.Clone(slot)
	for at := range 3 {
		le.PutUint32(suspended[at*SlotSize:], le.Uint32(suspended[at*SlotSize:])|Suspended)
		le.PutUint64(suspended[at*SlotSize+SlotExported+fuzzedCell*8:], ^uint64(0)>>(at*4))
	}
	f.Add([]byte(nil), suspended, uint32(3), uint16(0))
	f.Add([]byte("GPUSUSE1"), slot, uint32(0), uint16(0))
	ipc := bytes.Clone(good[:IPCHigh+4])
	le.PutUint32(ipc[IPCHigh:], ^uint32(0))
	records := make([]byte, 8*SlotSize)
	for i := range IPCRecords {
		le.PutUint64(records[8*i:], uint64(i%6)|fuzzedCell<<3|uint64(i)<<7|uint64(i)<<17|0x7ffff<<45)
	}
	f.Add(ipc, records, uint32(3), uint16(Processes))
	f.Fuzz(func(t *testing.T, header, slots []byte, high uint32, first uint16) {
		at := int(first) % Slots * SlotSize
		slots = slots[:min(len(slots), 8*SlotSize, Slots*SlotSize-at)]
		begin := bytes.Clone(good)
		copy(begin, header)
		le.PutUint32(begin[HighWater:], high)
		clear(begin[Charged : Charged+Slots/8])
		copy(begin[IPCLeft:], bytes.Repeat([]byte{0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0}, IPCRecords/32))
		for i := range min(high, Processes) {
			begin[Charged+int(i)/8] |= 1 << (i % 8)
		}
		require.NoError(t, usage.Truncate(0)) // all zeros again
		require.NoError(t, usage.Truncate(UsageSize))
		_, err := usage.WriteAt(begin, 0)
		require.NoError(t, err)
		_, err = usage.WriteAt(slots, int64(UsageHeader+at))
		require.NoError(t, err)

		_, ok := Limits()
		require.True(t, ok)
		sum, ok := Usage(fuzzedCell)
		if len(header) == 0 {
			require.True(t, ok)
		}
		if !ok {
			return
		}
		// The slots are a part of the file, and only those that are marked as charged count.
		var want big.Int
		all := make([]byte, Slots*SlotSize)
		copy(all[at:], slots)
		for i := at; i < at+len(slots) && i/SlotSize < int(min(high, Processes)); i += SlotSize {
			whole := all[i:]
			bytes := le.Uint64(whole[SlotHeader+fuzzedCell*CellSize:])
			if le.Uint32(whole)&Suspended != 0 {
				bytes = min(bytes, le.Uint64(whole[SlotExported+fuzzedCell*8:]))
			}
			want.Add(&want, new(big.Int).SetUint64(bytes))
		}
		// Of the IPC records those count that their makers have left, and those of checkpointed makers.
		ipcHigh := min(le.Uint32(begin[IPCHigh:]), IPCRecords)
		for i := range int(ipcHigh) {
			state := le.Uint64(all[IPC-UsageHeader+8*i:])
			maker := le.Uint32(all[int(state>>7&1023)%Processes*SlotSize:])
			if (state&7 == 4 || state&7 > 1 && maker&Suspended != 0) && state>>3&15 == fuzzedCell {
				want.Add(&want, new(big.Int).SetUint64(state>>17&(1<<33-1)*512))
			}
		}
		if !want.IsUint64() {
			want.SetUint64(^uint64(0))
		}
		require.Equal(t, want.Uint64(), sum.Committed)
		if sum.ReadOK && ipcHigh == 0 {
			require.LessOrEqual(t, sum.Read, sum.Committed)
		}
		claimed, pids := Claim()
		require.Less(t, claimed, Processes)
		require.GreaterOrEqual(t, claimed, -1)
		require.LessOrEqual(t, pids, 8)
	})
}

var size = regexp.MustCompile(`^([0-9]*)([kKmMgG]?)$`)

// A limit in the environment is its number, or none.
func FuzzSize(f *testing.F) {
	for _, text := range []string{"4000m", "0", "", "18446744073709551617", "72057594037927935", "1G ", "-1", "99999999g", "1e3", "m", "1\xff"} {
		f.Add(text, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, gpu uint8) {
		if strings.ContainsRune(text, 0) {
			return
		}
		want := new(big.Int)
		if parts := size.FindStringSubmatch(text); parts != nil && !strings.HasSuffix(text, "\n") {
			want.SetString("0"+parts[1], 10)
			want.Lsh(want, map[string]uint{"": 0, "k": 10, "m": 20, "g": 30}[strings.ToLower(parts[2])])
		}
		if want.Cmp(big.NewInt(ceiling)) >= 0 {
			want.SetInt64(0)
		}
		require.Equal(t, want.Uint64(), Size(text))
		i := int(gpu) % 16
		require.Equal(t, want.Uint64(), EnvLimit(fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d", i), text, i))
		require.Equal(t, want.Uint64(), EnvLimit("CUDA_DEVICE_MEMORY_LIMIT", text, i))
	})
}

// A process' name moves no field of its line in /proc.
func FuzzStat(f *testing.F) {
	f.Add([]byte(") Z 1 1"), uint64(5), uint64(4))
	f.Fuzz(func(t *testing.T, comm []byte, started, flags uint64) {
		comm = bytes.ReplaceAll(comm[:min(len(comm), 15)], []byte{0}, []byte{'x'})
		fields := make([]uint64, 36) // by their numbers in proc_pid_stat(5)
		fields[9], fields[20], fields[22], fields[31] = flags, 2, started, 256
		line := fmt.Sprintf("7 (%s) S -1 %s\n", comm, strings.Trim(fmt.Sprint(fields[5:]), "[]"))
		state, gotFlags, threads, gotStarted, pending, ok := Stat(line)
		require.True(t, ok)
		require.Equal(t, byte('S'), state)
		require.Equal(t, []uint64{flags, 2, started, 256}, []uint64{gotFlags, threads, gotStarted, pending})
		Stat(string(comm)) // a line that is cut off
	})
}
