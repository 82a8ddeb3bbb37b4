//go:build root

package simdriver

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// busySim is a GPU that one process keeps busy, as NVML reports.
func busySim(t *testing.T, gpu string) (*Sim, nvml.Device, *Process) {
	t.Helper()
	s := New(t, Plain, gpu)
	d := device(t, openNVML(t, s), 0)
	worker := s.Start("workloads/launch", "--seconds=600", "--duration-us=20000", "--in-flight=2")
	requireBusy(t, d)
	return s, d, worker
}

// requireBusy waits for a period in which the machine has run the worker often enough: it launches 40 ms ahead.
func requireBusy(t *testing.T, d nvml.Device) {
	t.Helper()
	require.Eventually(t, func() bool {
		return good(d.GetUtilizationRates())(t).Gpu >= 80
	}, time.Minute, 20*time.Millisecond)
}

// On Blackwell GPUs nvmlDeviceGetProcessUtilization gives NOT_SUPPORTED where nvmlDeviceGetProcessesUtilizationInfo answers.
// Source: github.com/Project-HAMi/HAMi-core/pull/218, github.com/Project-HAMi/HAMi/issues/2015.
func TestRealBlackwellHasUtilizationOfProcessesInOneCallOnly(t *testing.T) {
	s, d, worker := busySim(t, "H200:process_utilization=info")
	_, ret := d.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	values, code := s.Run("sim/check", "nvml-utilization")
	require.Zero(t, code)
	require.EqualValues(t, worker.Process.Pid, values.Int("pid"))
}

// Driver 560.35 and open kernel modules 535 name the processes, and 0 % for each.
// Source: github.com/Project-HAMi/HAMi-core/issues/54 and /issues/112.
func TestRealUtilizationOfProcessesIsZeroWithSomeDrivers(t *testing.T) {
	_, d, worker := busySim(t, "T4:process_utilization=zero")
	samples, ret := d.GetProcessUtilization(0)
	require.Equal(t, nvml.SUCCESS, ret)
	require.Len(t, samples, 1)
	require.EqualValues(t, worker.Process.Pid, samples[0].Pid)
	require.Zero(t, samples[0].SmUtil)
	requireBusy(t, d) // the GPU's own is right
}

// Both calls are documented to give NOT_FOUND without a sample, and NOT_SUPPORTED where a device has none.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetProcessUtilization and nvmlDeviceGetProcessesUtilizationInfo.
func TestRealUtilizationOfProcessesCanBeAbsent(t *testing.T) {
	s, d, _ := busySim(t, "T4:process_utilization=none")
	for _, state := range []struct {
		word string
		want nvml.Return
	}{{"none", nvml.ERROR_NOT_FOUND}, {"missing", nvml.ERROR_NOT_SUPPORTED}} {
		s.Ctl("set", "0", "process_utilization="+state.word)
		_, ret := d.GetProcessUtilization(0)
		require.Equal(t, state.want, ret, state.word)
		_, ret = d.GetProcessesUtilizationInfo()
		require.Equal(t, state.want, ret, state.word)
	}
	s.Ctl("set", "0", "process_utilization=detailed")
	_, ret := d.GetProcessUtilization(0)
	require.Equal(t, nvml.SUCCESS, ret)
	info, ret := d.GetProcessesUtilizationInfo()
	require.Equal(t, nvml.ERROR_INSUFFICIENT_SIZE, ret, "there is no room for it")
	require.EqualValues(t, 1, info.ProcessSamplesCount)
}

// A sample is of a period that is over, and can come later still; its time stamp is that of the period.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetProcessUtilization ("since a given timestamp", sampling buffer).
func TestRealUtilizationOfProcessesComesLate(t *testing.T) {
	s, d, worker := busySim(t, "T4:utilization_delay_ms=60000")
	_, ret := d.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret, "nothing is a minute old")
	s.Ctl("set", "0", "utilization_delay_ms=300")
	require.Eventually(t, func() bool {
		samples, ret := d.GetProcessUtilization(0)
		return ret == nvml.SUCCESS && int(samples[0].Pid) == worker.Process.Pid &&
			time.Since(time.UnixMicro(int64(samples[0].TimeStamp))) >= 300*time.Millisecond
	}, time.Minute, 20*time.Millisecond)
}

// nvmlDeviceGetRunningProcessDetailList gives processes by mode.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlProcessDetailList_v1_t.
func TestRealProcessDetailsAreByMode(t *testing.T) {
	s := New(t, Plain, "T4")
	s.Env = []string{"SIMGPU_GRAPHICS=only"}
	_, code := s.Run("sim/check", "nvml-details")
	require.Zero(t, code)
}

// Monitoring programs find clocks, links, ECC and power limits; nvtop shows no GPU where one of these functions is missing.
// Source: docs.nvidia.com/deploy/nvml-api; nvtop 3.0.1, src/extract_gpuinfo_nvidia.c.
func TestRealGPUTellsItsHardware(t *testing.T) {
	s := New(t, Plain, "H200:nvlink=1:4", "T4")
	library := openNVML(t, s)
	h200, t4 := device(t, library, 0), device(t, library, 1)
	require.EqualValues(t, 1980, good(h200.GetMaxClockInfo(nvml.CLOCK_GRAPHICS))(t))
	require.EqualValues(t, 3201, good(h200.GetClockInfo(nvml.CLOCK_MEM))(t))
	require.Equal(t, 5, good(h200.GetCurrPcieLinkGeneration())(t))
	require.Equal(t, 3, good(t4.GetMaxPcieLinkGeneration())(t))
	require.Equal(t, 16, good(t4.GetCurrPcieLinkWidth())(t))
	require.Zero(t, good(h200.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES))(t))
	percent, period, ret := h200.GetEncoderUtilization()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, []uint32{0, 167000}, []uint32{percent, period})
	require.EqualValues(t, 92, good(h200.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN))(t))
	_, ret = h200.GetFanSpeed()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret, "it is cooled by the machine's fans")
	current, pending, ret := h200.GetEccMode()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, []nvml.EnableState{nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED}, []nvml.EnableState{current, pending})
	require.EqualValues(t, 4, good(h200.GetNvLinkVersion(0))(t))
	_, _, _, _, ret = t4.GetRemappedRows()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	require.EqualValues(t, 256<<30, good(h200.GetBAR1MemoryInfo())(t).Bar1Total)
}

// A Hopper or Blackwell GPU reports whether the fabric manager has added it to a fabric of NVSwitches. Without switches the state is
// "not supported", with success; older GPUs don't know the question.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetGpuFabricInfo; github.com/leptonai/gpud/pull/1108, /pull/1140 and /pull/1147 (what
// GB200, single H100 and H200, and H100 PCIe answer).
func TestRealGPUTellsItsFabric(t *testing.T) {
	s := New(t, Plain, "H200", "H200:nvswitch=18", "A100-80GB")
	library := openNVML(t, s)
	for i, state := range []uint8{nvml.GPU_FABRIC_STATE_NOT_SUPPORTED, nvml.GPU_FABRIC_STATE_COMPLETED} {
		require.Equal(t, nvml.GpuFabricInfo{State: state}, good(device(t, library, i).GetGpuFabricInfo())(t))
		v2 := good(device(t, library, i).GetGpuFabricInfoV().V2())(t)
		require.Equal(t, nvml.GpuFabricInfo_v2{Version: v2.Version, State: state}, v2)
		v3 := good(device(t, library, i).GetGpuFabricInfoV().V3())(t)
		require.Equal(t, nvml.GpuFabricInfo_v3{Version: v3.Version, State: state}, v3)
	}
	_, ret := device(t, library, 2).GetGpuFabricInfo()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
}

// dcgm-exporter and CodeCarbon measure energy by the difference of two counts, in mJ.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetTotalEnergyConsumption (since the driver was loaded; Volta and newer).
func TestRealGPUCountsItsEnergy(t *testing.T) {
	s := New(t, Plain, "H200")
	library := openNVML(t, s)
	gpu := device(t, library, 0)
	before, busy := good(gpu.GetTotalEnergyConsumption())(t), s.Status().GPUs[0].BusyNanoseconds
	_, code := s.Run("workloads/spin", "--seconds=0.2", "--kernels-us=5000")
	require.Zero(t, code)
	used := good(gpu.GetTotalEnergyConsumption())(t) - before
	require.GreaterOrEqual(t, used, (s.Status().GPUs[0].BusyNanoseconds-busy)*560/1e6-1, "80 %% of 700 W, and what it takes when idle")
}

// nvidia-smi takes its list of processes from a table that NVML does not document.
// Source: github.com/NVIDIA/k8s-test-infra, pkg/gpu/mocknvml/bridge/internal.go, "nvidia-smi compatibility"; nvidia-smi 535.309.01.
func TestRealNVMLHasAPrivateTable(t *testing.T) { requireCheck(t, "nvml-private") }

// A GPU with MIG on has no figures of utilisation, neither its own nor of its processes.
// Source: docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetUtilizationRates and nvmlDeviceGetProcessUtilization ("on MIG-enabled GPUs").
func TestRealMIGHasNoUtilization(t *testing.T) {
	s := New(t, Plain, "H200:mig=3g.71gb")
	gpu := device(t, openNVML(t, s), 0)
	_, ret := gpu.GetUtilizationRates()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	_, ret = gpu.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	s.Ctl("mig", "0", "destroy", "all")
	s.Ctl("mig", "0", "disable")
	_, ret = gpu.GetUtilizationRates()
	require.Equal(t, nvml.SUCCESS, ret)
	_, ret = gpu.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret, "nothing has run")
}
