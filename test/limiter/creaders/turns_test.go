//go:build root

package creaders

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// The words of a turn file, by layout.h.
const (
	offWant, offHold, offLag, offBusy, offLooked, offWork, offCap = 16, 24, 32, 40, 48, 56, 64
	offWorks                                                      = 1152 // of each process

	ms = uint64(1000000)
)

func words(values map[int]uint64) []byte {
	file := make([]byte, TurnSize)
	for at, value := range values {
		le.PutUint64(file[at:], value)
	}
	return file
}

// A process that was stopped between its look and its account accounts for nothing that another one has accounted for.
func TestALateLookAccountsForNothing(t *testing.T) {
	const start = uint64(1e12)
	turn := words(map[int]uint64{offLooked: start + 200*ms, offWorks + 8: start + 200*ms, offWant: start + 210*ms})
	peer := words(map[int]uint64{offWant: start + 1000*ms})
	before := bytes.Clone(turn)
	charged, _, _ := Turn(turn, peer, Look{Now: start + 100*ms, From: start, To: start + 100*ms, Ns: 100 * ms})
	require.Zero(t, charged)
	require.Equal(t, before[:offWorks], turn[:offWorks])
	_, _, _ = Turn(turn, peer, Look{Now: start + 210*ms})
	require.Equal(t, 3*ms, le.Uint64(turn[offLag:]), "its part of 10 ms, of which it had none")
}

// What a tenant wrote over its words, and a peer over its own: the account stays in its bounds, and a container that is far
// behind goes on, whatever the peer writes.
func FuzzTurn(f *testing.F) {
	const now = uint64(1e15)
	good := words(map[int]uint64{offWant: now + ms, offLag: ms, offLooked: now - ms, offWork: now + ms, offCap: ms})
	f.Add(good[:2048], good[:TurnWords], now, now-ms, now, ms, uint8(0), uint8(0))
	f.Add(words(map[int]uint64{offLooked: now - ms})[:2048], bytes.Repeat([]byte{0xff}, TurnWords), now, now-ms, now, ms, uint8(30), uint8(1))
	f.Add(bytes.Repeat([]byte{0xff}, 2048), good[:TurnWords], now, uint64(0), ^uint64(0), ^uint64(0), uint8(100), uint8(2))
	f.Add(bytes.Repeat([]byte{0x7f}, 2048), bytes.Repeat([]byte{0x80}, TurnWords), now, now, now, uint64(0), uint8(100), uint8(3))
	f.Fuzz(func(t *testing.T, own, other []byte, now, from, to, ns uint64, percent, low uint8) {
		turn, peer := make([]byte, TurnSize), make([]byte, TurnSize)
		copy(turn, own)
		copy(peer[:TurnWords], other)
		now %= 1 << 62 // 146 years
		look := Look{Now: now, From: from, To: to, Ns: ns, Ceiling: float64(percent%100) / 100, Process: int(percent) % 64, Low: low&1 > 0, PeerLow: low&2 > 0}
		before, had := le.Uint64(turn[offLooked:]), le.Uint64(turn[offBusy:])
		charged, contended, mayGo := Turn(turn, peer, look)
		lag, room := int64(le.Uint64(turn[offLag:])), int64(le.Uint64(turn[offCap:]))
		covered := le.Uint64(turn[offBusy:]) - had
		require.LessOrEqual(t, charged, covered)
		if before != 0 && before < now {
			require.Equal(t, now, le.Uint64(turn[offLooked:]))
		}
		if before == 0 || before >= now {
			require.Zero(t, covered)
		} else {
			require.LessOrEqual(t, covered, min(now-before, uint64(-LagLeast)))
			require.LessOrEqual(t, lag, int64(LagMost))
			require.GreaterOrEqual(t, lag, int64(LagLeast))
			if look.Ceiling > 0 {
				require.LessOrEqual(t, room, int64(50*ms))
			}
			require.GreaterOrEqual(t, room, int64(LagLeast))
		}
		if look.Ceiling > 0 {
			require.True(t, contended)
			return
		}
		if !contended {
			require.True(t, mayGo)
		}
	})
}

// A table of any bytes gives parts of the GPU, to containers that are in it.
func FuzzTable(f *testing.F) {
	share := make([]byte, 16)
	le.PutUint64(share, 7)
	le.PutUint16(share[8:], 30)
	f.Add(append(share, share...), uint32(2), uint32(1), uint32(2), uint64(7))
	f.Add(bytes.Repeat(share, 100), uint32(100), uint32(50), uint32(4), uint64(8))
	f.Add(bytes.Repeat([]byte{0xff}, 16384), ^uint32(0), ^uint32(0), uint32(0), ^uint64(0))
	f.Add(share, uint32(1), uint32(1), uint32(3), uint64(7))
	f.Fuzz(func(t *testing.T, shares []byte, count, floor, sequence uint32, id uint64) {
		table := make([]byte, TableSize)
		copy(table, "GPUSTAB1")
		le.PutUint32(table[8:], sequence)
		le.PutUint32(table[16:], count)
		le.PutUint32(table[20:], floor)
		copy(table[32:], shares)
		s := Table(table, id)
		if sequence&1 == 1 {
			require.False(t, s.Valid, "its writer is at work")
			return
		}
		named := map[uint64]bool{}
		for i := 0; i < int(min(count, 1022)); i++ {
			named[le.Uint64(table[32+16*i:])] = true
		}
		require.Equal(t, named[id], s.Valid)
		require.LessOrEqual(t, len(s.Peers), TurnPeers)
		for i, weight := range append(s.Peers, s.Weight) {
			if i == len(s.Peers) && !s.Valid {
				continue
			}
			require.Greater(t, weight, 0.0)
			require.LessOrEqual(t, weight, 1.0)
		}
		for _, peer := range s.IDs {
			require.True(t, named[peer] && peer != id && peer != 0)
		}
	})
}
