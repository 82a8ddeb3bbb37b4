//go:build root

package limiter_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// ipcFile writes IPC records as a program of the container can (src/LAYOUT.md).
type ipcFile struct {
	t testing.TB
	f *os.File
}

const (
	ipcStates, ipcKeys, ipcHolders = 1232896, 1236992, 1241088
	ipcHigh, ipcLeft               = 1028, 1160
	ipcRecordCount                 = 512
)

func (c *container) ipcFile(t testing.TB) ipcFile {
	t.Helper()
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return ipcFile{t, f}
}

func (i ipcFile) write(at int, words ...uint64) {
	i.t.Helper()
	var b []byte
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	_, err := i.f.WriteAt(b, int64(at))
	require.NoError(i.t, err)
}

func (i ipcFile) word(at int) uint64 {
	i.t.Helper()
	var b [8]byte
	_, err := i.f.ReadAt(b[:], int64(at))
	require.NoError(i.t, err)
	return binary.LittleEndian.Uint64(b[:])
}

func (i ipcFile) setHigh(high uint32) {
	i.t.Helper()
	_, err := i.f.WriteAt(binary.LittleEndian.AppendUint32(nil, high), ipcHigh)
	require.NoError(i.t, err)
}

// all sets each record, of any number that there are.
func (i ipcFile) all(state uint64) {
	i.t.Helper()
	for r := range ipcRecordCount {
		i.write(ipcStates+8*r, state)
		i.write(ipcHolders+128*r, 1)
	}
	for word := range ipcRecordCount / 32 {
		i.write(ipcLeft+8*word, 1<<32-1)
	}
	i.setHigh(^uint32(0))
}

// A container that fills its records has no memory left; another one, with the same GPU, has its limit, and the agent reads a sum
// within what the records can hold, as memory of no process.
func TestForgedIPCRecordsAreOfOneContainer(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	other := newContainer(t, c.state, gpu{gpuIDs[0], ipcLimit})
	program, neighbour := c.peer(t), other.peer(t)
	c.ipcFile(t).all(4 | 1000<<7 | (1<<33-1)<<17 | 1<<50) // left, of no slot, 4 TiB each
	require.Equal(t, "2", program.alloc(1))
	require.Equal(t, 0, program.free())
	neighbour.exactly(100, "free 0")
	u, err := limiter.ReadUsage(c.usage())
	require.NoError(t, err)
	require.Equal(t, u.Devices[0].HeldBytes, u.Devices[0].UsedBytes, "none of it is residue, and it hides none")
	require.EqualValues(t, ipcRecordCount*(1<<33-1)*512, u.Devices[0].HeldBytes)
	require.ErrorIs(t, limiter.CheckUsage(c.usage(), gpuIDs[:1]), limiter.ErrUsage, "it is reported")
	u, err = limiter.ReadUsage(other.usage())
	require.NoError(t, err)
	require.Zero(t, u.Devices[0].UsedBytes)
}

// Of a GPU that the container does not have nothing counts, and a phase that is none counts nothing.
func TestForgedIPCRecordsOfNoGPU(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	program := c.peer(t)
	for _, state := range []uint64{4 | 15<<3 | 100<<17, 7 | 100<<17, 5 | 1023<<7 | 100<<17, 1 | 100<<17, 2 | 1023<<7 | 100<<17} {
		c.ipcFile(t).all(state)
		require.Equal(t, 100, program.free(), state)
		u, err := limiter.ReadUsage(c.usage())
		require.NoError(t, err)
		require.Zero(t, u.Devices[0].UsedBytes, state)
		require.NoError(t, limiter.CheckUsage(c.usage(), gpuIDs[:1]), state)
	}
}

// A record with the key of another container's handle takes no charge of that container: its memory stays charged to it until it is
// freed. What the forger has open then is its own to hide (docs/SECURITY.md).
func TestForgedKeyOfAnotherContainersMemory(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	other := newContainer(t, c.state, gpu{gpuIDs[0], ipcLimit})
	maker, forger, bait := c.peer(t), other.peer(t), other.peer(t)
	require.Equal(t, "0", maker.alloc(60))
	h := maker.handle(0)
	require.Equal(t, "0", bait.alloc(2))
	bait.handle(0)
	other.ipcFile(t).write(ipcKeys, c.ipcFile(t).word(ipcKeys))
	require.Equal(t, "0", forger.does("ipcopen %s", h))
	require.Equal(t, 40, maker.free())
	require.Equal(t, 98, forger.free())
	require.Equal(t, "0", forger.does("ipcclose 0"))
	require.Equal(t, "0", maker.does("free 0"))
	require.Equal(t, 100, maker.free())
}

// Every call of legacy IPC, an allocation and a look return beside a program that writes noise into all words of the records, and
// another container is exact meanwhile.
func TestIPCUnderNoiseInTheRecords(t *testing.T) {
	c := oneGPU(t, ipcLimit)
	other := newContainer(t, c.state, gpu{gpuIDs[0], ipcLimit})
	maker, opener, neighbour := c.peer(t), c.peer(t), other.peer(t)
	file := c.ipcFile(t).f
	ended := make(chan struct{})
	go func() { // until the file is closed
		defer close(ended)
		random := rand.New(rand.NewPCG(1, 2))
		word := func(at, count int) error {
			_, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, random.Uint64()>>random.IntN(64)), int64(at+8*random.IntN(count)))
			return err
		}
		for word(ipcStates, 2*ipcRecordCount) == nil && word(ipcHolders, 16*ipcRecordCount) == nil && word(ipcLeft, ipcRecordCount/32) == nil {
			if _, err := file.WriteAt(binary.LittleEndian.AppendUint32(nil, random.Uint32()>>random.IntN(32)), ipcHigh); err != nil {
				return
			}
		}
	}()
	pointers, opened := 0, 0
	for range 100 {
		if maker.alloc(1) == "0" {
			h := maker.handle(pointers)
			if opener.does("ipcopen %s", h) == "0" {
				opener.does("ipcclose %d", opened)
				opened++
			}
			maker.does("free %d", pointers)
			pointers++
		}
		opener.does("info")
		_, err := limiter.ReadUsage(c.usage())
		require.NoError(t, err)
	}
	neighbour.exactly(100, "free 0")
	require.NoError(t, file.Close())
	<-ended
	maker.kill()
	opener.kill()
	c.ipcFile(t).all(0)
	last := c.peer(t)
	require.Equal(t, "0", last.alloc(100), "no word of it stays in another place")
}
