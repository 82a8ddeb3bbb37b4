//go:build root

package simdriver

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	t4Capacity = (15360 - 430) * mib
	t4Context  = 105 * mib
)

func TestGPUIsExhaustedOverAllProcesses(t *testing.T) {
	s := New(t, Plain, "T4")
	for range 3 {
		s.Start("workloads/hold", "--mib=4000")
	}
	values, code := s.Run("workloads/alloc", "--chunk-mib=1")
	require.Zero(t, code)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", values["result"])
	require.EqualValues(t, t4Capacity-3*4000*mib-4*t4Context, values.Int("allocated_bytes"))
	gpu := s.Status().GPUs[0]
	require.EqualValues(t, t4Capacity, gpu.MemoryPeakBytes)
	require.EqualValues(t, 3*(4000*mib+t4Context), gpu.MemoryUsedBytes)
}

func TestKilledProcessGivesItsMemoryBack(t *testing.T) {
	s := New(t, Plain, "T4")
	holder := s.Start("workloads/hold", "--mib=14000")
	other := s.Start("workloads/hold", "--mib=100")
	values, _ := s.Run("workloads/alloc", "--chunk-mib=1000")
	require.Equal(t, "0", values["chunks"])
	holder.Kill()
	// No process reads the state in between: the allocation itself finds the dead processes.
	values, _ = s.Run("workloads/alloc", "--chunk-mib=1000")
	require.Equal(t, "14", values["chunks"])
	require.EqualValues(t, 100*mib+t4Context, s.Status().GPUs[0].MemoryUsedBytes)
	other.Kill()
	status := s.Status()
	require.Zero(t, status.GPUs[0].MemoryUsedBytes)
	require.Empty(t, status.Clients)
}

// A peak counts living processes only: the dead one's bytes are returned before the next one's are added.
func TestPeakDoesNotCountTheDead(t *testing.T) {
	s := New(t, Plain, "T4")
	for range 3 {
		s.Start("workloads/hold", "--mib=1000").Kill()
	}
	require.EqualValues(t, 1000*mib+t4Context, s.Status().GPUs[0].MemoryPeakBytes)
	s.Ctl("reset-peak")
	require.Zero(t, s.Status().GPUs[0].MemoryPeakBytes)
}

// Many processes that allocate and free at random, more than 200 of them killed by SIGKILL wherever they are.
func TestSIGKILLAnywhere(t *testing.T) {
	s := New(t, Plain, "T4")
	neighbour := s.Start("workloads/hold", "--mib=500")
	killed := int64(0)
	for seed := 1; killed < 200; seed++ {
		require.Less(t, seed, 40, "too few kills")
		values, code := s.Run("workloads/churn", "--workers=8", "--seconds=1", "--kill-every-ms=5", "--max-kib=1048576",
			"--seed="+strconv.Itoa(seed))
		require.Zero(t, code)
		require.Equal(t, "1", values["fine"])
		killed += values.Int("killed")
		gpu := s.Status().GPUs[0]
		require.EqualValues(t, 500*mib+t4Context, gpu.MemoryUsedBytes)
		require.LessOrEqual(t, gpu.MemoryPeakBytes, uint64(t4Capacity))
	}
	neighbour.Kill()
	requireEmpty(t, s.Status())
}

func requireEmpty(t *testing.T, status Status) {
	t.Helper()
	require.Empty(t, status.Clients)
	for _, gpu := range status.GPUs {
		require.Zero(t, gpu.MemoryUsedBytes)
	}
	for _, group := range status.Groups {
		require.Zero(t, group.Clients)
		for _, gpu := range group.GPUs {
			require.Zero(t, gpu.DataBytes+gpu.ContextBytes)
		}
	}
}

// A process dies at every place in the accounting where a total could be left half changed. The next process
// finds the totals right to the byte.
func TestDeathAtEveryCrashPoint(t *testing.T) {
	s := New(t, Plain, "T4")
	neighbour := s.Start("workloads/hold", "--mib=500")
	points := 0
	for {
		points++
		require.Less(t, points, 500)
		s.Env = []string{"SIMGPU_CRASH=" + strconv.Itoa(points)}
		values, code := s.Run("workloads/alloc", "--chunk-mib=3000")
		s.Env = nil
		status := s.Status()
		require.EqualValues(t, 500*mib+t4Context, status.GPUs[0].MemoryUsedBytes, "crash point %d", points)
		require.EqualValues(t, 500*mib, status.Groups[0].GPUs[0].DataBytes, "crash point %d", points)
		require.Equal(t, 1, status.Groups[0].Clients, "crash point %d", points)
		if code == 0 {
			require.Equal(t, "4", values["freed_chunks"])
			break
		}
		require.Equal(t, -1, code, "crash point %d", points)
	}
	require.Greater(t, points, 30)
	neighbour.Kill()
	requireEmpty(t, s.Status())
}

// The same, where the one that dies is the one that returns a dead process's memory.
func TestDeathWhileReaping(t *testing.T) {
	s := New(t, Plain, "T4")
	for point := 1; ; point++ {
		require.Less(t, point, 100)
		s.Start("workloads/hold", "--mib=500").Kill()
		s.Env = []string{"SIMGPU_CRASH=" + strconv.Itoa(point)}
		err := s.Command("sim/simctl", "status").Run()
		s.Env = nil
		requireEmpty(t, s.Status())
		if err == nil {
			require.Greater(t, point, 3)
			return
		}
	}
}

// orphan runs a check, with a process that is killed, and returns the child that it leaves.
func orphan(t *testing.T, s *Sim, check string) (child int) {
	values, code := s.Run("sim/check", check)
	require.Equal(t, -1, code)
	child = int(values.Int("child"))
	require.Greater(t, child, 0)
	return child
}

// requireFreedWith kills a process that is no child of ours, and waits for its memory.
func requireFreedWith(t *testing.T, s *Sim, pid int) {
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return s.Status().GPUs[0].MemoryUsedBytes == 0 }, time.Minute, 5*time.Millisecond)
}

// As with a real driver, a forked child that keeps the driver's files keeps the memory of its dead parent.
func TestForkedChildKeepsMemory(t *testing.T) {
	s := New(t, Plain, "T4")
	child := orphan(t, s, "orphan")
	require.EqualValues(t, 64*mib+t4Context, s.Status().GPUs[0].MemoryUsedBytes)
	requireFreedWith(t, s, child)
}

// Exported memory lives as long as a descriptor of it, also one in a socket when its process is killed.
func TestExportedMemoryLivesAsLongAsADescriptor(t *testing.T) {
	s := New(t, Plain, "T4")
	child := orphan(t, s, "export-orphan")
	status := s.Status()
	require.EqualValues(t, 64*mib, status.GPUs[0].MemoryUsedBytes)
	require.EqualValues(t, 64*mib, status.Groups[0].GPUs[0].DataBytes)
	require.Empty(t, status.Clients)
	requireFreedWith(t, s, child)
	requireEmpty(t, s.Status())
}

// An exporting process ends at any place in the accounting: memory without a descriptor is released.
func TestDeathWhileExporting(t *testing.T) {
	s := New(t, Plain, "T4")
	for point := 1; ; point++ {
		require.Less(t, point, 500)
		s.Env = []string{"SIMGPU_CRASH=" + strconv.Itoa(point)}
		_, code := s.Run("sim/check", "vmm")
		s.Env = nil
		requireEmpty(t, s.Status())
		if code == 0 {
			require.Greater(t, point, 30)
			return
		}
	}
}

func TestGroupsHaveTheirOwnPeaks(t *testing.T) {
	s := New(t, Plain, "T4", "T4")
	start := func(group, device, mebibytes int) *Process {
		cmd := s.Command("workloads/hold", fmt.Sprintf("--mib=%d", mebibytes), fmt.Sprintf("--device=%d", device))
		cmd.Env = append(cmd.Env, fmt.Sprintf("SIMGPU_GROUP=%d", group))
		return s.StartCommand(cmd)
	}
	start(7, 0, 100).Kill()
	start(7, 0, 300)
	start(7, 1, 50)
	start(8, 0, 1000)
	groups := map[uint64]Group{}
	for _, group := range s.Status().Groups {
		groups[group.ID] = group
	}
	require.Equal(t, 2, groups[7].Clients)
	require.EqualValues(t, 300*mib, groups[7].GPUs[0].PeakDataBytes)
	require.EqualValues(t, t4Context, groups[7].GPUs[0].PeakContextBytes)
	require.EqualValues(t, 300*mib+t4Context, groups[7].GPUs[0].PeakTotalBytes)
	require.EqualValues(t, 50*mib, groups[7].GPUs[1].DataBytes)
	require.EqualValues(t, 1000*mib, groups[8].GPUs[0].DataBytes)
	require.Zero(t, groups[8].GPUs[1].PeakTotalBytes)
}

// Without SIMGPU_GROUP a group is a mount namespace: what a container is.
func TestGroupIsTheMountNamespace(t *testing.T) {
	s := New(t, Plain, "T4")
	s.Start("workloads/hold", "--mib=1")
	cmd := s.Command("workloads/hold", "--mib=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	s.StartCommand(cmd)
	status := s.Status()
	require.Len(t, status.Groups, 2)
	require.Len(t, status.Clients, 2)
	require.Equal(t, 1, status.Clients[1].PID, "the PID is the client's own view")
	require.True(t, status.Clients[1].Live, "another PID namespace does not hide that it lives")
	require.NotEqual(t, status.Clients[0].PIDNamespace, status.Clients[1].PIDNamespace)
}

// More containers come and go than there are groups.
func TestGroupsAreReused(t *testing.T) {
	s := New(t, Plain, "T4")
	keeper := s.Command("workloads/hold", "--mib=6")
	keeper.Env = append(keeper.Env, "SIMGPU_GROUP=1")
	s.StartCommand(keeper)
	for group := 2; group < 270; group++ {
		cmd := s.Command("workloads/hold", "--mib=1", "--seconds=0.001")
		cmd.Env = append(cmd.Env, fmt.Sprintf("SIMGPU_GROUP=%d", group))
		require.NoError(t, cmd.Run())
	}
	kept := 0
	for _, group := range s.Status().Groups {
		if group.ID == 1 {
			kept++
			require.EqualValues(t, 6*mib, group.GPUs[0].DataBytes)
		}
	}
	require.Equal(t, 1, kept)
}

func TestUsersOfOtherIDsShareTheState(t *testing.T) {
	s := New(t, Plain, "T4")
	dir := publicCopy(t, s)
	cmd := exec.Command(dir+"/hold", "--mib=10")
	cmd.Env = []string{"SIMGPU_STATE=" + dir + "/state", "LD_LIBRARY_PATH=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	s.StartCommand(cmd)
	s.State = dir + "/state"
	require.EqualValues(t, 10*mib, s.Status().GPUs[0].MemoryDataBytes)
	require.True(t, strings.HasPrefix(s.Status().State, dir))
}
