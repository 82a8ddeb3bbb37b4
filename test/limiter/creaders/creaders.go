// Package creaders has the limiter's readers of what others wrote, in C, for fuzzing in Go: the
// limits and usage files, tables and turn files, the environment's limits, /proc/<pid>/stat. It is called by its own
// tests only. The readers are limiter/src's files as they are, compiled with checks of undefined
// behaviour that end the process (ubsan.c), so that no index leaves its array unseen.
package creaders

/*
#cgo CFLAGS: -std=gnu11 -O1 -g -D_GNU_SOURCE -fsanitize=undefined -I${SRCDIR}/../../../limiter/src
#include <stdlib.h>
#include "creaders.h"
*/
import "C"

import (
	"errors"
	"os"
	"unsafe"
)

// Layout of the two files, by layout.h.
const (
	LimitsSize   = C.VGPU_LIMITS_BYTES
	UsageSize    = C.VGPU_USAGE_BYTES
	UsageHeader  = C.VGPU_USAGE_HEADER_BYTES
	SlotSize     = C.VGPU_SLOT_BYTES
	SlotHeader   = C.VGPU_SLOT_HEADER_BYTES
	SlotExported = C.CREADERS_EXPORTED
	Suspended    = C.CREADERS_SUSPENDED
	CellSize     = C.VGPU_CELL_BYTES
	Slots        = C.VGPU_SLOT_COUNT
	Processes    = C.VGPU_PROCESSES
	IPC          = C.CREADERS_IPC
	IPCHigh      = C.CREADERS_IPC_HIGH
	IPCLeft      = C.CREADERS_IPC_LEFT
	IPCRecords   = C.VGPU_IPC_RECORDS
	HighWater    = C.CREADERS_HIGH_WATER
	Charged      = C.CREADERS_CHARGED
	TableSize    = C.VGPU_TABLE_BYTES
	TurnSize     = C.VGPU_TURN_BYTES
	TurnWords    = C.VGPU_TURN_WORDS_BYTES
	TurnPeers    = C.VGPU_TURN_PEERS
	LagMost      = C.CREADERS_LAG_MOST
	LagLeast     = C.CREADERS_LAG_LEAST
)

// SetPaths sets the paths of the two files. It fails inside a container of gpuslice.
func SetPaths(limits, usage string) error {
	if _, err := os.Stat("/.gpuslice"); err == nil {
		return errors.New("/.gpuslice is there, and the readers would read that")
	}
	for name, path := range map[string]string{"VGPU_LIMITS_PATH": limits, "VGPU_USAGE_PATH": usage} {
		setenv(name, path)
	}
	return nil
}

func setenv(name, value string) {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	C.setenv(n, v, 1)
}

// GPU is a GPU: what the limiter takes from one record of the limits file.
type GPU struct {
	Bytes, Context, Residue, Physical, Room uint64
	Percent, SoftPercent                    uint8
}

// Limits reads the limits file as a process that starts does. False: CUDA is denied.
func Limits() ([]GPU, bool) {
	C.creaders_forget()
	if !C.limits_ready() {
		return nil, false
	}
	gpus := make([]GPU, int(C.limits_count()))
	for i := range gpus {
		c := C.int(i)
		share := C.limits_share(c)
		gpus[i] = GPU{
			Bytes: uint64(C.limits_bytes(c)), Context: uint64(C.limits_context_bytes(c)), Residue: uint64(C.limits_residue_bytes(c)),
			Physical: uint64(C.limits_physical_bytes(c)), Room: uint64(C.limits_room(c)), Percent: uint8(share.percent),
			SoftPercent: uint8(share.soft_percent),
		}
	}
	return gpus, true
}

// Sum is what the limiter takes from the usage file for one GPU.
type Sum struct {
	Committed, Tentative, Spilled, Read uint64
	ReadOK                              bool
}

// Usage reads the usage file as a process that starts does, of one GPU. False: CUDA is denied.
func Usage(cell int) (Sum, bool) {
	usage := C.usage_map()
	if usage == nil {
		return Sum{}, false
	}
	c := C.int(cell)
	sum := C.creaders_sum(usage, c)
	var read C.uint64_t
	ok := C.usage_read(c, &read)
	return Sum{uint64(sum.committed), uint64(sum.tentative), uint64(C.usage_spilled(usage, c)), uint64(read), bool(ok)}, true
}

// Claim takes a slot of the usage file, as a process that starts does, and clears those of the
// dead. It returns the slot, -1 for none, and how many processes the file names.
func Claim() (slot, pids int) {
	usage := C.usage_map()
	fd := C.usage_open()
	defer C.close(fd)
	C.slot_reap(usage, fd)
	slot = int(C.slot_claim(usage, fd))
	var room [8]C.uint
	return slot, int(C.usage_pids(&room[0], C.int(len(room))))
}

// Size reads a size of the environment, 0: it is none.
func Size(text string) uint64 {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	return uint64(C.creaders_size(c))
}

// EnvLimit reads the limits of the environment, with one variable set, and returns a GPU's.
func EnvLimit(name, value string, gpu int) uint64 {
	setenv(name, value)
	C.envlimits_read()
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	C.unsetenv(n)
	return uint64(C.envlimits_bytes(C.int(gpu)))
}

// Stat reads a line of /proc/<pid>/stat.
func Stat(line string) (state byte, flags, threads, started, pending uint64, ok bool) {
	c := C.CString(line)
	defer C.free(unsafe.Pointer(c))
	var s C.struct_creaders_stat
	ok = bool(C.creaders_stat(c, &s))
	return byte(s.state), uint64(s.flags), uint64(s.threads), uint64(s.started), uint64(s.pending), ok
}

// Shares are what a container takes from a table: its own part of the GPU, and its peers'.
type Shares struct {
	Valid  bool
	Weight float64
	IDs    []uint64
	Peers  []float64
}

// Table reads a table's bytes for a container.
func Table(file []byte, id uint64) (s Shares) {
	var c C.struct_shares
	C.creaders_table(unsafe.Pointer(&file[0]), C.uint64_t(id), &c)
	s.Valid, s.Weight = bool(c.valid), float64(c.weight)
	for i := range int(c.count) {
		s.IDs, s.Peers = append(s.IDs, uint64(c.peers[i].id)), append(s.Peers, float64(c.peers[i].weight))
	}
	return s
}

// Look is a look of a process of a container with one peer: when, and when it had work since the last one.
type Look struct {
	Now, From, To, Ns uint64
	Ceiling           float64
	Process           int
	Low, PeerLow      bool
}

// Turn looks, with the words of both containers, and changes the own ones.
func Turn(turn, peer []byte, l Look) (charged uint64, contended, mayGo bool) {
	c := C.struct_creaders_turn{
		now: C.uint64_t(l.Now), from: C.uint64_t(l.From), to: C.uint64_t(l.To), ns: C.uint64_t(l.Ns), ceiling: C.double(l.Ceiling),
		process: C.int(l.Process), low: C.bool(l.Low), peer_low: C.bool(l.PeerLow),
	}
	C.creaders_turn((*C.struct_vgpu_turn)(unsafe.Pointer(&turn[0])), unsafe.Pointer(&peer[0]), &c)
	return uint64(c.charged), bool(c.contended), bool(c.may_go)
}
