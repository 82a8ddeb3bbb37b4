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
	requireCheckOn(t, "H200", check)
}

func requireCheckOn(t *testing.T, gpu, check string) {
	t.Helper()
	s := New(t, Plain, gpu)
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

// The kernel driver releases memory with the last reference to it, of any process. docs/measurements/2026-11-27-h100.md, "Legacy
// IPC": a process that has it open opens it again at the same address, and no other can open it.
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

// JustVugg/colibri#1244, measured on an RTX 3090 (CUDA 13.1), and on H100 and H200 the same; pytorch/pytorch#17120: since Pascal
// what is above 1 MiB begins at a page of 2 MiB, smaller ones share pages. 3 MiB take 4, by which HAMi-core's limits are
// a third too high.
func TestRealAllocationsTakePages(t *testing.T) {
	s := New(t, Plain, "H200", "T4")
	for kib, taken := range map[int]int{4: 4, 768: 1024, 1024: 1024, 1025: 2048, 1536: 2048, 2048: 2048, 2049: 4096, 3072: 4096, 6144: 6144, 6145: 8192} {
		for device, capacity := range []int{143165, t4Capacity / mib} {
			held := s.Start("workloads/alloc", "--chunk-kib="+strconv.Itoa(kib), "--max-mib=120", "--hold=0", "--device="+strconv.Itoa(device))
			gpu := s.Status().GPUs[device]
			chunks := uint64(120 * 1024 / kib)
			want := (chunks*uint64(taken)*1024 + 2*mib - 1) / (2 * mib) * (2 * mib)
			require.EqualValues(t, chunks, held.Values.Int("chunks"))
			require.Equal(t, want, gpu.MemoryDataBytes, "%d chunks of %d KiB", chunks, kib)
			require.EqualValues(t, uint64(capacity)*mib-want-gpu.ContextBytes, held.Values.Int("free_bytes"))
			held.Kill()
		}
	}
	requireCheck(t, "pages")
}

// pytorch/pytorch#17120: nvidia-smi counts a page that is partly used as full.
func TestRealNVMLCountsPages(t *testing.T) {
	s := New(t, Plain, "T4")
	d := device(t, openNVML(t, s), 0)
	held := s.Start("workloads/alloc", "--chunk-kib=3072", "--max-mib=3", "--hold=0")
	require.EqualValues(t, 4*mib+t4Context, good(d.GetMemoryInfo_v2())(t).Used)
	processes := good(d.GetComputeRunningProcesses())(t)
	require.Len(t, processes, 1)
	require.EqualValues(t, 4*mib+t4Context, processes[0].UsedGpuMemory)
	require.EqualValues(t, t4Capacity-4*mib-t4Context, held.Values.Int("free_bytes"), "cuMemGetInfo too")
	held.Kill()
	values, code := s.Run("workloads/alloc", "--chunk-mib=3")
	require.Zero(t, code)
	require.EqualValues(t, (t4Capacity-t4Context)/(4*mib), values.Int("chunks"))
	requireEmpty(t, s.Status())
}

// fzyzcjy/torch_memory_saver#82 (GB200): the granularity is 2 MiB, and 6912 bytes are INVALID_VALUE.
func TestRealVirtualMemoryHasAGranularity(t *testing.T) { requireCheck(t, "granularity") }

// CUDA driver API, cuCtxSetLimit (the sizes of heap, printf's buffer and stacks are the context's); stackoverflow.com, "How is
// CUDA memory managed?": stacks are there for every thread that all multiprocessors can run; code, constants and
// the runtime's heap are of the context too.
func TestRealContextGrows(t *testing.T) { requireCheck(t, "context-growth") }

// docs/measurements/2026-11-26-h100.md, "Where the simulated GPU was wrong": cuCtxSetLimit takes nothing for the heap and for
// printf; the first module that calls malloc, and its first launch, do. From that launch on the limit can't be changed, as
// NVIDIA documents of cuCtxSetLimit.
func TestRealHeapIsTakenByItsFirstLaunch(t *testing.T) { requireCheckOn(t, "H100", "device-heap") }

// The same: the first cuInit takes 3 MiB (which stay while another process is there: export.ended_left_mib), a context 524, of
// which NVML counts 518 for the process.
func TestRealNVMLCountsLessForAProcess(t *testing.T) {
	s := New(t, Plain, "H100")
	d := device(t, openNVML(t, s), 0)
	require.EqualValues(t, 480*mib, good(d.GetMemoryInfo_v2())(t).Reserved)
	before := s.Start("sim/check", "init-only")
	require.EqualValues(t, 3*mib, good(d.GetMemoryInfo_v2())(t).Used)
	require.Empty(t, good(d.GetComputeRunningProcesses())(t))
	held := s.Start("workloads/alloc", "--chunk-mib=4", "--max-mib=4", "--hold=0")
	require.EqualValues(t, (3+524+4)*mib, good(d.GetMemoryInfo_v2())(t).Used, "the 3 MiB are there once")
	require.EqualValues(t, 81559-480-3-524-4, held.Values.Int("free_bytes")/mib)
	processes := good(d.GetComputeRunningProcesses())(t)
	require.Len(t, processes, 1)
	require.EqualValues(t, (518+4)*mib, processes[0].UsedGpuMemory)
	before.Kill()
	require.EqualValues(t, (3+524+4)*mib, good(d.GetMemoryInfo_v2())(t).Used)
	held.Kill()
	require.Zero(t, good(d.GetMemoryInfo_v2())(t).Used)
	requireEmpty(t, s.Status())
}

// The same: NVML counts imported memory for no process, also after its maker's end, when the GPU still has it.
func TestRealNVMLCountsImportsForNoProcess(t *testing.T) {
	s := New(t, Plain, "T4")
	d := device(t, openNVML(t, s), 0)
	figures := func() map[int]uint64 {
		of := map[int]uint64{}
		for _, p := range good(d.GetComputeRunningProcesses())(t) {
			of[int(p.Pid)] = p.UsedGpuMemory
		}
		return of
	}
	maker := s.Start("sim/check", "import-holder")
	importer := int(maker.Values.Int("child"))
	require.Equal(t, map[int]uint64{maker.Process.Pid: 64*mib + t4Context, importer: t4Context}, figures())
	require.EqualValues(t, 64*mib+2*t4Context, good(d.GetMemoryInfo_v2())(t).Used)
	maker.Kill()
	require.Equal(t, map[int]uint64{importer: t4Context}, figures())
	require.EqualValues(t, 64*mib+t4Context, good(d.GetMemoryInfo_v2())(t).Used)
	requireFreedWith(t, s, importer)
}

// Seen with NCCL and cuBLAS: libraries take memory that no call of the program shows; only NVML does.
func TestRealLibrariesTakeMemoryUnseen(t *testing.T) {
	s := New(t, Plain, "T4")
	hold := s.Start("workloads/hold", "--mib=4")
	s.Ctl("grow", strconv.Itoa(hold.Process.Pid), "200")
	status := s.Status()
	require.EqualValues(t, 204*mib+t4Context, status.GPUs[0].MemoryUsedBytes)
	require.EqualValues(t, 4*mib, status.GPUs[0].MemoryDataBytes)
	hold.Kill()
	requireEmpty(t, s.Status())
}

// CUDA Programming Guide, "Stream-Ordered Memory Allocator", pointer attributes: memory of a pool is of no context, and the pool is
// asked for. NCCL (src/allocator.cc, src/transport/p2p.cc) asks mappings for their device, their range, and whether IPC takes them.
func TestRealPointersTellWhatTheyAreOf(t *testing.T) { requireCheck(t, "pointer-kinds") }
