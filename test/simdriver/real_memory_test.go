//go:build root

package simdriver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What real GPUs were seen to do with memory, or NVIDIA documents that they do. The source stands with each.

func requireCheck(t *testing.T, check string) {
	t.Helper()
	s := New(t, Plain, "H200")
	text, err := s.Command("sim/check", check).CombinedOutput()
	require.NoError(t, err, "%s", text)
	requireEmpty(t, s.Status())
}

// Every program that checks its data relies on it; seen missing by numba (to_device, copy_to_host), pycuda, ffmpeg's
// framemd5 of hwupload and hwdownload, and hashcat's self-test.
func TestRealMemoryHoldsWhatWasWritten(t *testing.T) { requireCheck(t, "contents") }

// CUDA driver API, "Graph Management": memcpy and memset nodes do their work in each launch, and read the host's memory then.
func TestRealGraphsCopyWhenTheyRun(t *testing.T) { requireCheck(t, "graph-contents") }

// CUDA C++ Programming Guide, "Interprocess Communication" and "Virtual Memory Management": processes that have the same
// memory see what the others wrote. The memory goes when the last of them lets it go.
func TestRealExportedMemoryIsSharedAndOutlivesItsMaker(t *testing.T) { requireCheck(t, "sharing") }

// The kernel driver releases memory with the last reference to it, of any process.
func TestRealIPCMemoryOutlivesAKilledMaker(t *testing.T) {
	s := New(t, Plain, "T4")
	child := orphan(t, s, "ipc-orphan")
	status := s.Status()
	require.EqualValues(t, 64*mib+t4Context, status.GPUs[0].MemoryUsedBytes)
	require.EqualValues(t, 64*mib, status.Groups[0].GPUs[0].DataBytes)
	require.Len(t, status.Clients, 1)
	requireFreedWith(t, s, child)
	requireEmpty(t, s.Status())
}

// CUDA C++ Programming Guide, "Stream Ordered Memory Allocator": memory of cudaMalloc can be freed by cudaFreeAsync. A loop
// of both runs without end on a real GPU.
func TestRealFreeAsyncFreesWhatMallocGave(t *testing.T) { requireCheck(t, "free-async") }

// CUDA C++ Programming Guide, "Graph Memory Nodes", "Address Reuse within a Graph": allocations with lifetimes that do not
// overlap may have the same addresses, and the same memory.
func TestRealGraphsReuseAddresses(t *testing.T) { requireCheck(t, "graph-reuse") }
