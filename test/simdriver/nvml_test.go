//go:build root

package simdriver

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// openNVML opens the simulated library as the agent does the real one.
func openNVML(t *testing.T, s *Sim) nvml.Interface {
	t.Helper()
	t.Setenv("SIMGPU_STATE", s.State)
	library := nvml.New(nvml.WithLibraryPath(filepath.Join(s.Dir, "sim/libnvidia-ml.so.1")))
	require.Equal(t, nvml.SUCCESS, library.Init())
	t.Cleanup(func() { require.Equal(t, nvml.SUCCESS, library.Shutdown()) })
	return library
}

func device(t *testing.T, library nvml.Interface, index int) nvml.Device {
	t.Helper()
	d, ret := library.DeviceGetHandleByIndex(index)
	require.Equal(t, nvml.SUCCESS, ret)
	return d
}

// good unwraps a value that must be there.
func good[T any](value T, ret nvml.Return) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.Equal(t, nvml.SUCCESS, ret)
		return value
	}
}

func TestNVMLDescribesTheSystem(t *testing.T) {
	library := openNVML(t, New(t, Plain, "H200", "T4"))
	require.Equal(t, 2, good(library.DeviceGetCount())(t))
	require.Equal(t, "570.172.08", good(library.SystemGetDriverVersion())(t))
	require.Equal(t, "12.570.172.08", good(library.SystemGetNVMLVersion())(t))
	require.Equal(t, 12080, good(library.SystemGetCudaDriverVersion())(t))
	require.Equal(t, 12080, good(library.SystemGetCudaDriverVersion_v2())(t))
	require.Equal(t, "Not Found", library.ErrorString(nvml.ERROR_NOT_FOUND))
	_, ret := library.DeviceGetHandleByIndex(2)
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	_, ret = library.DeviceGetHandleByUUID(third)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	_, ret = library.DeviceGetHandleByPciBusId("0000:77:00.0")
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
}

func TestNVMLDescribesAGPU(t *testing.T) {
	library := openNVML(t, New(t, Plain, "H200", "T4:minor=3,numa=1"))
	h200, t4 := device(t, library, 0), device(t, library, 1)
	byUUID := good(library.DeviceGetHandleByUUID(second))(t)
	byBus := good(library.DeviceGetHandleByPciBusId("0000:11:00.0"))(t)
	for _, d := range []nvml.Device{t4, byUUID, byBus, good(library.DeviceGetHandleByPciBusId("00000000:11:00.0"))(t)} {
		require.Equal(t, 1, good(d.GetIndex())(t))
		require.Equal(t, 3, good(d.GetMinorNumber())(t))
		require.Equal(t, second, good(d.GetUUID())(t))
		require.Equal(t, "Tesla T4", good(d.GetName())(t))
		require.Equal(t, 40*64, good(d.GetNumGpuCores())(t))
	}
	major, minor, ret := t4.GetCudaComputeCapability()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, []int{7, 5}, []int{major, minor})
	require.EqualValues(t, nvml.DEVICE_ARCH_TURING, good(t4.GetArchitecture())(t))
	require.EqualValues(t, nvml.DEVICE_ARCH_HOPPER, good(h200.GetArchitecture())(t))
	require.EqualValues(t, nvml.BRAND_NVIDIA, good(h200.GetBrand())(t))

	pci := good(t4.GetPciInfo())(t)
	require.EqualValues(t, 0x11, pci.Bus)
	require.EqualValues(t, 0x1eb810de, pci.PciDeviceId)
	require.Equal(t, "00000000:11:00.0", text(pci.BusId[:]))
	require.Equal(t, "0000:11:00.0", text(pci.BusIdLegacy[:]))

	current, pending, ret := h200.GetMigMode()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Zero(t, current+pending)
	_, _, ret = t4.GetMigMode()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	require.Zero(t, good(h200.GetMaxMigDeviceCount())(t), "MIG is off")
	require.False(t, good(h200.IsMigDeviceHandle())(t))
	_, ret = h200.GetNvLinkState(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	require.Less(t, good(h200.GetTemperature(nvml.TEMPERATURE_GPU))(t), uint32(100))
	require.Positive(t, good(h200.GetPowerUsage())(t))
	require.Equal(t, 1, good(t4.GetNumaNodeId())(t))
	require.Equal(t, []uint{2}, good(t4.GetMemoryAffinity(1, nvml.AFFINITY_SCOPE_NODE))(t))
	require.NotZero(t, good(t4.GetCpuAffinity(2))(t)[0])
}

// The values that NVML reports of a GPU can be set and reset.
func TestNVMLState(t *testing.T) {
	s := New(t, Plain, "T4:temperature=91,power_mw=70123,utilization=0", "T4")
	library := openNVML(t, s)
	d := device(t, library, 0)
	read := func() []uint32 {
		return []uint32{good(d.GetTemperature(nvml.TEMPERATURE_GPU))(t), good(d.GetPowerUsage())(t), good(d.GetUtilizationRates())(t).Gpu}
	}
	require.Equal(t, []uint32{91, 70123, 0}, read())
	s.Ctl("set", "0", "temperature=0", "power_mw=auto", "utilization=42")
	require.Equal(t, []uint32{0, 7000, 42}, read())
	require.EqualValues(t, 21, good(d.GetUtilizationRates())(t).Memory)
	require.EqualValues(t, 30, good(device(t, library, 1).GetTemperature(nvml.TEMPERATURE_GPU))(t))
}

func text(chars []int8) string {
	var bytes []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		bytes = append(bytes, byte(c))
	}
	return string(bytes)
}

func TestNVMLTopology(t *testing.T) {
	library := openNVML(t, New(t, Plain, "T4", "T4:pci_switch=0", "T4:pci_root=0", "T4", "T4:numa=1",
		"T4:pci_upper=0", "T4:pci_board=0"))
	want := []nvml.GpuTopologyLevel{nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE, nvml.TOPOLOGY_HOSTBRIDGE,
		nvml.TOPOLOGY_NODE, nvml.TOPOLOGY_SYSTEM, nvml.TOPOLOGY_MULTIPLE, nvml.TOPOLOGY_INTERNAL}
	zero := device(t, library, 0)
	for i, level := range want {
		require.Equal(t, level, good(zero.GetTopologyCommonAncestor(device(t, library, i)))(t), "GPU %d", i)
	}
	nearest := good(zero.GetTopologyNearestGpus(nvml.TOPOLOGY_HOSTBRIDGE))(t)
	require.Len(t, nearest, 4)
}

func TestNVLinks(t *testing.T) {
	s := New(t, Plain, "T4:nvlink=1:1,nvlink=2:1", "T4:nvlink=0:1,nvswitch=1", "T4", "T4")
	library := openNVML(t, s)
	d := device(t, library, 0)
	for link, bus := range []uint32{0x11, 0x11, 0x12} {
		require.Equal(t, nvml.FEATURE_ENABLED, good(d.GetNvLinkState(link))(t))
		require.Equal(t, nvml.NVLINK_DEVICE_TYPE_GPU, good(d.GetNvLinkRemoteDeviceType(link))(t))
		pci := good(d.GetNvLinkRemotePciInfo(link))(t)
		require.Equal(t, bus, pci.Bus)
		require.Equal(t, fmt.Sprintf("00000000:%02X:00.0", bus), text(pci.BusId[:]))
	}
	_, ret := d.GetNvLinkState(3)
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	require.Equal(t, nvml.NVLINK_DEVICE_TYPE_SWITCH, good(device(t, library, 1).GetNvLinkRemoteDeviceType(2))(t))
	require.EqualValues(t, 0x22a310de, good(device(t, library, 1).GetNvLinkRemotePciInfo(2))(t).PciDeviceId)
	_, ret = device(t, library, 3).GetNvLinkState(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	s.Ctl("lose", "2")
	require.Equal(t, nvml.FEATURE_DISABLED, good(d.GetNvLinkState(2))(t))
}

func TestNVMLAndCUDAAgreeOnMemory(t *testing.T) {
	s := New(t, Plain, "T4", "T4")
	library := openNVML(t, s)
	d := device(t, library, 1)
	holder := s.Start("workloads/hold", "--mib=1000", "--device=1")
	const used = 1000*mib + t4Context
	memory := good(d.GetMemoryInfo())(t)
	require.EqualValues(t, 15360*mib, memory.Total)
	require.EqualValues(t, 430*mib+used, memory.Used, "version 1 counts what is reserved as used")
	require.EqualValues(t, t4Capacity-used, memory.Free)
	memory2 := good(d.GetMemoryInfo_v2())(t)
	require.EqualValues(t, used, memory2.Used)
	require.EqualValues(t, 430*mib, memory2.Reserved)
	require.Equal(t, memory.Free, memory2.Free)
	require.EqualValues(t, 430*mib, good(device(t, library, 0).GetMemoryInfo())(t).Used)

	processes := good(d.GetComputeRunningProcesses())(t)
	require.Len(t, processes, 1)
	require.EqualValues(t, holder.Process.Pid, processes[0].Pid)
	require.EqualValues(t, used, processes[0].UsedGpuMemory)
	require.Empty(t, good(d.GetGraphicsRunningProcesses())(t))

	values, _ := s.Run("workloads/meminfo")
	require.Equal(t, strconv.Itoa(t4Capacity), values["device.1.total_bytes"])
	require.Equal(t, strconv.Itoa(t4Capacity-used-t4Context), values["device.1.info_free_bytes"])
	require.Equal(t, values["device.1.info_free_bytes"], values["nvml.1.free_bytes"])
	require.Equal(t, values["device.1.info_free_bytes"], values["nvml.1.v2.free_bytes"])
	require.Equal(t, "2", values["nvml.1.processes"])

	holder.Kill()
	require.Zero(t, good(d.GetMemoryInfo_v2())(t).Used, "NVML returns the memory of the dead as well")
	require.Empty(t, good(d.GetComputeRunningProcesses())(t))
}

// A client in its own PID namespace has only that namespace's PID. NVML on the host reports the host's PID.
func TestNVMLTranslatesPIDs(t *testing.T) {
	s := New(t, Plain, "T4")
	library := openNVML(t, s)
	cmd := s.Command("workloads/hold", "--mib=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	holder := s.StartCommand(cmd)
	processes := good(device(t, library, 0).GetComputeRunningProcesses())(t)
	require.Len(t, processes, 1)
	require.EqualValues(t, holder.Process.Pid, processes[0].Pid)
}

func TestNVMLUtilisation(t *testing.T) {
	s := New(t, Plain, "T4")
	library := openNVML(t, s)
	d := device(t, library, 0)
	_, ret := d.GetProcessUtilization(0)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	began := time.Now().Truncate(time.Microsecond)
	worker := s.Start("workloads/launch", "--seconds=600", "--duration-us=20000", "--in-flight=2")
	var samples []nvml.ProcessUtilizationSample
	require.Eventually(t, func() bool {
		rates := good(d.GetUtilizationRates())(t)
		samples, ret = d.GetProcessUtilization(0)
		return rates.Gpu >= 80 && ret == nvml.SUCCESS && samples[0].SmUtil >= 80
	}, time.Minute, 50*time.Millisecond)
	require.EqualValues(t, worker.Process.Pid, samples[0].Pid)
	require.WithinRange(t, time.UnixMicro(int64(samples[0].TimeStamp)), began, time.Now())
	// No sample is reported twice.
	_, ret = d.GetProcessUtilization(samples[0].TimeStamp + 3_600_000_000)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	worker.Kill()
}

func TestNVMLEvents(t *testing.T) {
	s := New(t, Plain, "T4", "T4", "T4")
	library := openNVML(t, s)
	s.Ctl("xid", "1", "31") // before the set was made: not for it
	set := good(library.EventSetCreate())(t)
	defer func() { require.Equal(t, nvml.SUCCESS, set.Free()) }()
	for i := range 2 {
		d := device(t, library, i)
		types := good(d.GetSupportedEventTypes())(t)
		require.NotZero(t, types&nvml.EventTypeXidCriticalError)
		require.Equal(t, nvml.SUCCESS, d.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	}
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, device(t, library, 0).RegisterEvents(1<<40, set))
	_, ret := set.Wait(1)
	require.Equal(t, nvml.ERROR_TIMEOUT, ret)

	s.Ctl("xid", "2", "43") // a GPU that the set did not register
	s.Ctl("xid", "0", "79")
	s.Ctl("xid", second, "48")
	for _, want := range []struct {
		uuid string
		xid  uint64
	}{{first, 79}, {second, 48}} {
		data := good(set.Wait(5000))(t)
		require.EqualValues(t, nvml.EventTypeXidCriticalError, data.EventType)
		require.Equal(t, want.xid, data.EventData)
		require.Equal(t, want.uuid, good(data.Device.GetUUID())(t))
	}

	// One that comes while someone waits.
	got := make(chan nvml.EventData, 1)
	go func() {
		data, _ := set.Wait(20000)
		got <- data
	}()
	s.Ctl("xid", "0", "94")
	require.EqualValues(t, 94, (<-got).EventData)
}

func TestNVMLFailures(t *testing.T) {
	s := New(t, Plain, "T4")
	t.Setenv("SIMGPU_STATE", s.State)
	path := filepath.Join(s.Dir, "sim/libnvidia-ml.so.1")
	library := nvml.New(nvml.WithLibraryPath(path))
	s.Ctl("fail", "nvmlInit_v2", "1", "999")
	require.Equal(t, nvml.ERROR_UNKNOWN, library.Init())
	require.Equal(t, nvml.SUCCESS, library.Init())
	s.Ctl("fail", "nvmlDeviceGetMemoryInfo", "1", "15")
	_, ret := device(t, library, 0).GetMemoryInfo()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	good(device(t, library, 0).GetMemoryInfo())(t)
	require.Equal(t, nvml.SUCCESS, library.Shutdown())

	t.Setenv("SIMGPU_STATE", s.State+".missing")
	require.Equal(t, nvml.ERROR_DRIVER_NOT_LOADED, nvml.New(nvml.WithLibraryPath(path)).Init())
}
