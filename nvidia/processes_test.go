package nvidia

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProcesses(t *testing.T) {
	s := newEventServer()
	answer := nvml.SUCCESS
	for i := range s.Devices {
		d := s.device(i)
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			if i > 0 {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 30}, {Pid: 8, UsedGpuMemory: notAvailable}}, answer
		}
		d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 8, UsedGpuMemory: 10}, {Pid: 10, UsedGpuMemory: 20}}, nvml.SUCCESS
		}
		d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 30}, {Pid: 9, UsedGpuMemory: 40}}, nvml.SUCCESS
		}
	}
	symbol := error(nil)
	s.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return symbol }}
	}
	c := NewCache(s, CacheOptions{})
	ctx := context.Background()
	all, err := c.Processes(ctx)
	require.ErrorContains(t, err, "not open")
	assert.Nil(t, all, "unknown, not none")
	telemetry, err := c.Telemetry(ctx)
	require.ErrorContains(t, err, "not open")
	assert.Nil(t, telemetry)
	require.NoError(t, c.Refresh(ctx))
	gpu := c.Node().GPUs[0].UUID
	want := map[string][]Process{gpu: {{PID: 7, Bytes: 30, Known: true}, {PID: 8}, {PID: 10, Bytes: 20, Known: true}, {PID: 9, Bytes: 40, Known: true, Graphics: true}}}
	all, err = c.Processes(ctx)
	require.NoError(t, err)
	assert.Equal(t, want, all, "MPS clients and graphics processes too; GPUs without the information are not listed")
	memories, err := c.ProcessMemories(ctx)
	require.NoError(t, err)
	assert.Equal(t, map[string][]ProcessMemory{gpu: {{7, 30}, {10, 20}, {9, 40}}}, memories)
	symbol = nvml.ERROR_FUNCTION_NOT_FOUND
	all, err = c.Processes(ctx)
	require.NoError(t, err)
	assert.Len(t, all[gpu], 3, "a driver without an MPS list is not queried for it")
	answer = nvml.ERROR_UNKNOWN
	all, err = c.Processes(ctx)
	require.ErrorIs(t, err, nvml.ERROR_UNKNOWN)
	assert.Empty(t, all)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	all, err = c.Processes(ended)
	require.ErrorIs(t, err, context.Canceled)
	assert.Nil(t, all)
	require.NoError(t, c.Close())
}

// On real processes and MIG devices, by the simulated driver.
func TestProcessesOnTheSimulatedDriver(t *testing.T) {
	library, _ := simulated(t, "H200", "A100-40GB:mig=3g.20gb,mig=1g.5gb")
	c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
	ctx := context.Background()
	require.NoError(t, c.Refresh(ctx))
	defer c.Close()
	gpus := c.Node().GPUs
	require.Len(t, gpus[1].MIG, 2)
	pids := map[string]int{}
	for _, uuid := range []string{gpus[0].UUID, gpus[1].MIG[1].UUID} {
		hold := exec.Command(filepath.Join(filepath.Dir(library), "../workloads/hold"), "--mib=100")
		hold.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid, "LD_LIBRARY_PATH="+filepath.Dir(library))
		if uuid == gpus[0].UUID {
			hold.Env = append(hold.Env, "SIMGPU_GRAPHICS=only")
		}
		out, err := hold.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, hold.Start())
		t.Cleanup(func() { _ = hold.Process.Kill(); _ = hold.Wait() })
		var text strings.Builder
		for one := make([]byte, 64); !strings.Contains(text.String(), "ready=1"); {
			n, err := out.Read(one)
			require.NoError(t, err, text.String())
			text.Write(one[:n])
		}
		pids[uuid] = hold.Process.Pid
	}
	all, err := c.Processes(ctx)
	require.NoError(t, err)
	require.Len(t, all, 3, "a GPU, and two MIG devices in place of the other")
	for uuid, pid := range pids {
		require.Len(t, all[uuid], 1)
		assert.Equal(t, pid, all[uuid][0].PID)
		assert.True(t, all[uuid][0].Known)
		assert.Equal(t, uuid == gpus[0].UUID, all[uuid][0].Graphics)
		assert.Greater(t, all[uuid][0].Bytes, uint64(100<<20), "and a context")
	}
	assert.Empty(t, all[gpus[1].MIG[0].UUID])
}
