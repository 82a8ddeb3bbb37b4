//go:build root

package simdriver

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

func TestNVMLOfALostGPU(t *testing.T) {
	for _, test := range []struct {
		description string
		lose        []string
		presence    string
		count       int // after nvmlInit again
		xid         bool
	}{
		{"fallen off the bus: listed, can't be reached", []string{"lose", "0"}, "lost", 2, true},
		{"removed: listed no more", []string{"lose", "0", "removed"}, "removed", 1, false},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := New(t, Plain, "T4", "T4")
			t.Setenv("SIMGPU_STATE", s.State)
			library := nvml.New(nvml.WithLibraryPath(filepath.Join(s.Dir, "sim/libnvidia-ml.so.1")))
			require.Equal(t, nvml.SUCCESS, library.Init())
			old := device(t, library, 0)
			set := good(library.EventSetCreate())(t)
			require.Equal(t, nvml.SUCCESS, old.RegisterEvents(nvml.EventTypeXidCriticalError, set))

			s.Ctl(test.lose...)
			require.Equal(t, test.presence, s.Status().GPUs[0].Presence)
			if test.xid {
				require.EqualValues(t, 79, good(set.Wait(5000))(t).EventData)
			}
			_, ret := set.Wait(5000)
			require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
			require.Equal(t, nvml.ERROR_GPU_IS_LOST, old.RegisterEvents(nvml.EventTypeXidCriticalError, set))
			require.Equal(t, nvml.SUCCESS, set.Free())
			require.Equal(t, 2, good(library.DeviceGetCount())(t), "what is open keeps its numbers")
			requireLost(t, old)
			_, ret = library.DeviceGetHandleByIndex(0)
			require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
			require.Equal(t, second, good(device(t, library, 1).GetUUID())(t), "the other GPU is as it was")

			require.Equal(t, nvml.SUCCESS, library.Shutdown())
			require.Equal(t, nvml.SUCCESS, library.Init())
			require.Equal(t, test.count, good(library.DeviceGetCount())(t))

			s.Ctl("restore", "0")
			require.Equal(t, "present", s.Status().GPUs[0].Presence)
			require.Equal(t, test.count, good(library.DeviceGetCount())(t), "found by the next init")
			require.Equal(t, nvml.SUCCESS, library.Shutdown())
			require.Equal(t, nvml.SUCCESS, library.Init())
			require.Equal(t, 2, good(library.DeviceGetCount())(t))
			require.Equal(t, first, good(device(t, library, 0).GetUUID())(t))
			require.Equal(t, nvml.SUCCESS, library.Shutdown())
		})
	}
}

func requireLost(t *testing.T, d nvml.Device) {
	t.Helper()
	_, ret := d.GetUUID()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = d.GetMemoryInfo()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = d.GetUtilizationRates()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = d.GetComputeRunningProcesses()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = d.GetGraphicsRunningProcesses()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = d.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
}

func TestCUDAOfALostGPU(t *testing.T) {
	s := New(t, Plain, "T4")
	worker := s.Start("workloads/launch", "--seconds=60", "--duration-us=1000")
	s.Ctl("lose", "0")
	require.Error(t, worker.Wait(), "a process that has the GPU open fails")
	_, code := s.Run("workloads/meminfo", "--no-nvml")
	require.NotZero(t, code, "a new one finds no GPU")
	s.Ctl("restore", "0")
	_, code = s.Run("workloads/meminfo", "--no-nvml")
	require.Zero(t, code)
	require.Zero(t, s.Status().GPUs[0].MemoryUsedBytes)
}
