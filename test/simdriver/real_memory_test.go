//go:build root

package simdriver

import (
	"bufio"
	"fmt"
	"strconv"
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

// CUDA driver API, "CUDA Checkpointing": a process that is checkpointed has no memory of a GPU, and gets it back when it is
// restored. NVIDIA's cuda-checkpoint does the same from outside: the process is gone from nvidia-smi meanwhile.
func TestRealCheckpointedProcessHasNoMemory(t *testing.T) {
	requireCheck(t, "checkpoint")
	s := New(t, Plain, "T4")
	holder := s.Start("workloads/hold", "--mib=64")
	cmd := s.Command("sim/check", "checkpoint-other")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	replies := bufio.NewScanner(stdout)
	send := func(line string) {
		_, err := fmt.Fprintln(stdin, line)
		require.NoError(t, err)
	}
	send(strconv.Itoa(holder.Process.Pid))
	require.True(t, replies.Scan())
	require.Equal(t, "checkpointed=2", replies.Text())
	require.EqualValues(t, t4Context, s.Status().GPUs[0].MemoryUsedBytes, "of the process that asks")
	taken, code := s.Run("workloads/alloc", "--chunk-mib=1")
	require.Zero(t, code)
	require.EqualValues(t, t4Capacity-2*t4Context, taken.Int("allocated_bytes"), "others can have it")
	send("go on")
	require.True(t, replies.Scan())
	require.Equal(t, "running=0", replies.Text())
	require.EqualValues(t, 64*mib+2*t4Context, s.Status().GPUs[0].MemoryUsedBytes)
	send("end")
	require.NoError(t, cmd.Wait())
	holder.Kill()
	requireEmpty(t, s.Status())
}

// pytorch/pytorch#17120 (NVML counts pages of 2 MiB) and HAMi-core's published table: 3 MiB take 4, 1 MiB and a byte take 2.
func TestRealAllocationsTakePages(t *testing.T) {
	s := New(t, Plain, "T4:page_kib=2048")
	text, err := s.Command("sim/check", "pages").CombinedOutput()
	require.NoError(t, err, "%s", text)
	requireEmpty(t, s.Status())
	values, code := s.Run("workloads/alloc", "--chunk-mib=3")
	require.Zero(t, code)
	require.EqualValues(t, (t4Capacity-t4Context)/(4*mib), values.Int("chunks"))
	hold := s.Start("workloads/hold", "--mib=3")
	require.EqualValues(t, t4Context+4*mib, s.Status().GPUs[0].MemoryUsedBytes)
	hold.Kill()
	requireEmpty(t, s.Status())
}

// Seen with NCCL and cuBLAS: libraries take memory that no call of the program shows; only NVML does.
func TestRealLibrariesTakeMemoryUnseen(t *testing.T) {
	s := New(t, Plain, "T4")
	hold := s.Start("workloads/hold", "--mib=3")
	s.Ctl("grow", strconv.Itoa(hold.Process.Pid), "200")
	status := s.Status()
	require.EqualValues(t, 203*mib+t4Context, status.GPUs[0].MemoryUsedBytes)
	require.EqualValues(t, 3*mib, status.GPUs[0].MemoryDataBytes)
	hold.Kill()
	requireEmpty(t, s.Status())
}
