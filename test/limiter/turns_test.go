//go:build root

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// The files of turns by limiter/src/layout.h.
const (
	tableBytes    = 16384
	turnBytes     = 4096
	offTurnID     = 72 // of the limits file
	offTurnWords  = 16 // of a turn file: after magic and id
	offTurnCap    = 64
	offSharesList = 32 // of a table
	shareBytes    = 16
)

// node is the host's part of turns: the tables of the GPUs, and the containers that are in them.
type node struct {
	dir        string
	containers []*container
}

// takeTurns makes containers of one machine take turns on their GPUs, as the host does.
func takeTurns(tb testing.TB, containers ...*container) *node {
	tb.Helper()
	n := &node{dir: tb.TempDir(), containers: containers}
	for i, c := range containers {
		c.node, c.turnID = n, uint64(i+1)
		f, err := os.OpenFile(c.limits(), os.O_RDWR, 0)
		require.NoError(tb, err)
		_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, c.turnID), offTurnID)
		require.NoError(tb, err)
		require.NoError(tb, f.Close())
		require.NoError(tb, os.MkdirAll(c.turns(), 0o755))
		for record, d := range c.devices(tb) {
			require.NoError(tb, os.MkdirAll(filepath.Join(n.dir, d.UUID), 0o755))
			require.NoError(tb, os.Symlink(filepath.Join(n.dir, d.UUID), filepath.Join(c.turns(), fmt.Sprint(record))))
			file := make([]byte, turnBytes)
			binary.LittleEndian.PutUint64(file[copy(file, "GPUSTUR1"):], c.turnID)
			require.NoError(tb, os.WriteFile(c.turnFile(tb, record), file, 0o666))
		}
	}
	n.write(tb)
	return n
}

func (c *container) turns() string { return filepath.Join(c.dir, "turns") }

// turnFile has the container's words about a GPU of its.
func (c *container) turnFile(tb testing.TB, record int) string {
	tb.Helper()
	return filepath.Join(c.node.dir, c.devices(tb)[record].UUID, fmt.Sprintf("%016x", c.turnID))
}

func (c *container) devices(tb testing.TB) []limiter.DeviceLimit {
	tb.Helper()
	limits, err := limiter.ReadLimits(c.limits())
	require.NoError(tb, err)
	return limits.Devices
}

// write writes the tables by the limits that the containers have now.
func (n *node) write(tb testing.TB) {
	tb.Helper()
	shares := map[string][]byte{}
	for _, c := range n.containers {
		for _, d := range c.devices(tb) {
			s := binary.LittleEndian.AppendUint64(shares[d.UUID], c.turnID)
			s = binary.LittleEndian.AppendUint16(s, uint16(d.CorePercent))
			s = binary.LittleEndian.AppendUint16(s, uint16(d.CoreSoftPercent))
			shares[d.UUID] = append(s, byte(d.Policy), byte(d.Priority), 0, 0)
		}
	}
	for uuid, s := range shares {
		rewriteTable(tb, filepath.Join(n.dir, uuid, "table"), s)
	}
}

// rewriteTable changes a table in place: its sequence is odd meanwhile.
func rewriteTable(tb testing.TB, path string, shares []byte) {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(tb, err)
	defer f.Close()
	table := make([]byte, tableBytes)
	_, _ = f.ReadAt(table, 0) // a new one is empty
	le := binary.LittleEndian
	sequence := le.Uint32(table[8:])
	write := func(at int64, b []byte) {
		_, err := f.WriteAt(b, at)
		require.NoError(tb, err)
	}
	require.NoError(tb, f.Truncate(tableBytes))
	write(8, le.AppendUint32(nil, sequence|1))
	copy(table, "GPUSTAB1")
	clear(table[16:])
	le.PutUint32(table[16:], uint32(len(shares)/shareBytes))
	le.PutUint32(table[20:], 1)
	copy(table[offSharesList:], shares)
	le.PutUint32(table[12:], crc32.ChecksumIEEE(table[16:]))
	write(0, table[:8])
	write(12, table[12:])
	write(8, le.AppendUint32(nil, (sequence|1)+1))
}
