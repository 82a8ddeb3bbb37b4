//go:build root

package simdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// migDevice is a MIG device of a GPU by the number that NVML gives it.
func migDevice(t *testing.T, library nvml.Interface, gpu, index int) nvml.Device {
	t.Helper()
	return good(device(t, library, gpu).GetMigDeviceHandleByIndex(index))(t)
}

// Figures of NVIDIA's MIG user guide and of `nvidia-smi mig -lgip` on such GPUs.
func TestMIGProfiles(t *testing.T) {
	type profile struct {
		name                    string
		mib, sm, slices, engine int // engines: of the kind that copies
	}
	for gpu, profiles := range map[string][]profile{
		"A100-40GB": {{"1g.5gb", 4864, 14, 1, 1}, {"1g.5gb+me", 4864, 14, 1, 1}, {"1g.10gb", 9984, 14, 1, 1},
			{"2g.10gb", 9984, 28, 2, 2}, {"3g.20gb", 20096, 42, 3, 3}, {"4g.20gb", 20096, 56, 4, 4},
			{"7g.40gb", 40320, 98, 7, 7}},
		"A100-80GB": {{"1g.10gb", 9728, 14, 1, 1}, {"1g.10gb+me", 9728, 14, 1, 1}, {"1g.20gb", 19968, 14, 1, 1},
			{"2g.20gb", 19968, 28, 2, 2}, {"3g.40gb", 40192, 42, 3, 3}, {"4g.40gb", 40192, 56, 4, 4},
			{"7g.80gb", 80896, 98, 7, 7}},
		"H100": {{"1g.10gb", 9984, 16, 1, 1}, {"1g.10gb+me", 9984, 16, 1, 1}, {"1g.20gb", 20096, 26, 1, 1},
			{"2g.20gb", 20096, 32, 2, 2}, {"3g.40gb", 40448, 60, 3, 3}, {"4g.40gb", 40448, 64, 4, 4},
			{"7g.80gb", 81559 - 480, 132, 7, 8}}, // all that this GPU gives out
		"H200": {{"1g.18gb", 16384, 16, 1, 1}, {"1g.18gb+me", 16384, 16, 1, 1}, {"1g.35gb", 33024, 26, 1, 1},
			{"2g.35gb", 33024, 32, 2, 2}, {"3g.71gb", 71168, 60, 3, 3}, {"4g.71gb", 71168, 64, 4, 4},
			{"7g.141gb", 143104, 132, 7, 8}},
	} {
		t.Run(gpu, func(t *testing.T) {
			s := New(t, Plain, gpu+":mig=on")
			library := openNVML(t, s)
			name := good(device(t, library, 0).GetName())(t)
			for _, p := range profiles {
				s.Ctl("mig", "0", "create", p.name)
				mig := migDevice(t, library, 0, 0)
				require.Equal(t, name+" MIG "+p.name, good(mig.GetName())(t))
				attributes := good(mig.GetAttributes())(t)
				require.EqualValues(t, p.mib, attributes.MemorySizeMB, p.name)
				require.EqualValues(t, p.mib*mib, good(mig.GetMemoryInfo())(t).Total, p.name)
				require.EqualValues(t, p.sm, attributes.MultiprocessorCount, p.name)
				require.EqualValues(t, p.slices, attributes.GpuInstanceSliceCount, p.name)
				require.EqualValues(t, p.slices, attributes.ComputeInstanceSliceCount, p.name)
				require.EqualValues(t, p.engine, attributes.SharedCopyEngineCount, p.name)
				s.Ctl("mig", "0", "destroy", "all")
			}
		})
	}
}

func TestNVMLListsMIGDevices(t *testing.T) {
	s := New(t, Plain, "T4", "H200:mig=1g.18gb,mig=3g.71gb,mig=1g.18gb+me")
	library := openNVML(t, s)
	gpu := device(t, library, 1)
	require.Equal(t, 2, good(library.DeviceGetCount())(t), "GPUs only")
	current, pending, ret := gpu.GetMigMode()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, []int{nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE}, []int{current, pending})
	require.Equal(t, 7, good(gpu.GetMaxMigDeviceCount())(t))
	require.False(t, good(gpu.IsMigDeviceHandle())(t))

	want := s.Status().GPUs[1].MIG
	require.Len(t, want, 3)
	for i, w := range want {
		mig := migDevice(t, library, 1, i)
		require.True(t, good(mig.IsMigDeviceHandle())(t))
		require.Equal(t, w.UUID, good(mig.GetUUID())(t))
		require.Equal(t, i, good(mig.GetIndex())(t))
		require.Equal(t, w.GPUInstance, good(mig.GetGpuInstanceId())(t))
		require.Zero(t, good(mig.GetComputeInstanceId())(t))
		require.Equal(t, second, good(good(mig.GetDeviceHandleFromMigDeviceHandle())(t).GetUUID())(t))
		require.Equal(t, w.GPUInstance, good(good(library.DeviceGetHandleByUUID(w.UUID))(t).GetGpuInstanceId())(t))
	}
	_, ret = gpu.GetMigDeviceHandleByIndex(3)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	_, ret = gpu.GetMigDeviceHandleByIndex(7)
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	_, ret = device(t, library, 0).GetMigDeviceHandleByIndex(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)

	last := migDevice(t, library, 1, 2)
	s.Ctl("mig", "1", "destroy", want[2].UUID)
	_, ret = last.GetUUID()
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret, "the handle of what is gone")
	_, ret = library.DeviceGetHandleByUUID(want[2].UUID)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	s.Ctl("mig", "1", "disable")
	require.Zero(t, good(gpu.GetMaxMigDeviceCount())(t))
	_, ret = gpu.GetMigDeviceHandleByIndex(0)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
}

// What only a GPU, or only a MIG device, can be asked.
func TestNVMLErrorsWithMIG(t *testing.T) {
	s := New(t, Plain, "T4", "H200:mig=3g.71gb")
	library := openNVML(t, s)
	t4, gpu, mig := device(t, library, 0), device(t, library, 1), migDevice(t, library, 1, 0)
	set := good(library.EventSetCreate())(t)
	defer func() { require.Equal(t, nvml.SUCCESS, set.Free()) }()
	require.Equal(t, 1, good(gpu.GetMinorNumber())(t))
	for name, ask := range map[string]func(nvml.Device) nvml.Return{
		"GetMinorNumber":         func(d nvml.Device) nvml.Return { _, ret := d.GetMinorNumber(); return ret },
		"GetPciInfo":             func(d nvml.Device) nvml.Return { _, ret := d.GetPciInfo(); return ret },
		"GetTemperature":         func(d nvml.Device) nvml.Return { _, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); return ret },
		"GetNumaNodeId":          func(d nvml.Device) nvml.Return { _, ret := d.GetNumaNodeId(); return ret },
		"GetMigMode":             func(d nvml.Device) nvml.Return { _, _, ret := d.GetMigMode(); return ret },
		"GetUtilizationRates":    func(d nvml.Device) nvml.Return { _, ret := d.GetUtilizationRates(); return ret },
		"GetProcessUtilization":  func(d nvml.Device) nvml.Return { _, ret := d.GetProcessUtilization(0); return ret },
		"GetNumGpuCores":         func(d nvml.Device) nvml.Return { _, ret := d.GetNumGpuCores(); return ret },
		"RegisterEvents":         func(d nvml.Device) nvml.Return { return d.RegisterEvents(nvml.EventTypeXidCriticalError, set) },
		"GetNvLinkState":         func(d nvml.Device) nvml.Return { _, ret := d.GetNvLinkState(0); return ret },
		"GetSupportedEventTypes": func(d nvml.Device) nvml.Return { _, ret := d.GetSupportedEventTypes(); return ret },
	} {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ask(mig), name)
	}
	_, ret := gpu.GetUtilizationRates()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret, "not of a GPU with MIG on")
	_, ret = gpu.GetNumGpuCores()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	for want, d := range map[nvml.Return]nvml.Device{nvml.ERROR_INVALID_ARGUMENT: gpu, nvml.ERROR_NOT_SUPPORTED: t4} {
		_, ret = d.GetGpuInstanceId()
		require.Equal(t, want, ret)
		_, ret = d.GetComputeInstanceId()
		require.Equal(t, want, ret)
		_, ret = d.GetDeviceHandleFromMigDeviceHandle()
		require.Equal(t, want, ret)
		_, ret = d.GetAttributes()
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	}
	s.Ctl("lose", "1")
	_, ret = mig.GetUUID()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
}

func TestNVMLMemoryAndProcessesOfMIGDevices(t *testing.T) {
	s := New(t, Plain, "A100-40GB:mig=3g.20gb,mig=1g.5gb")
	library := openNVML(t, s)
	gpu, large, small := device(t, library, 0), migDevice(t, library, 0, 0), migDevice(t, library, 0, 1)
	holder := s.Start("workloads/hold", "--mib=1000") // on the first
	s.Env = []string{"CUDA_VISIBLE_DEVICES=" + good(small.GetUUID())(t)}
	other := s.Start("workloads/hold", "--mib=2000")
	const one, two = 1000*mib + a100Context, 2000*mib + a100Context
	require.EqualValues(t, one, good(large.GetMemoryInfo())(t).Used)
	require.EqualValues(t, 4864*mib-two, good(small.GetMemoryInfo_v2())(t).Free)
	require.Zero(t, good(small.GetMemoryInfo_v2())(t).Reserved)
	require.EqualValues(t, one+two, good(gpu.GetMemoryInfo_v2())(t).Used, "the GPU's is the sum")

	processes := good(small.GetComputeRunningProcesses())(t)
	require.Len(t, processes, 1)
	require.EqualValues(t, other.Process.Pid, processes[0].Pid)
	require.EqualValues(t, good(small.GetGpuInstanceId())(t), processes[0].GpuInstanceId)
	require.Zero(t, processes[0].ComputeInstanceId)
	require.Empty(t, good(small.GetGraphicsRunningProcesses())(t))
	ids := map[uint32]uint32{}
	for _, p := range good(gpu.GetComputeRunningProcesses())(t) {
		ids[p.Pid] = p.GpuInstanceId
	}
	require.Equal(t, map[uint32]uint32{
		uint32(holder.Process.Pid): uint32(good(large.GetGpuInstanceId())(t)),
		uint32(other.Process.Pid):  uint32(good(small.GetGpuInstanceId())(t)),
	}, ids)
}

// Events come to the GPU with their instance.
func TestNVMLEventsOfMIGDevices(t *testing.T) {
	s := New(t, Plain, "T4", "H200:mig=3g.71gb,mig=1g.18gb")
	library := openNVML(t, s)
	set := good(library.EventSetCreate())(t)
	defer func() { require.Equal(t, nvml.SUCCESS, set.Free()) }()
	require.Equal(t, nvml.SUCCESS, device(t, library, 1).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	devices := s.Status().GPUs[1].MIG
	s.Ctl("xid", devices[1].UUID, "43")
	s.Ctl("xid", "1:0", "13")
	s.Ctl("xid", "1", "48")
	const none = 0xffffffff
	for _, want := range []struct {
		xid              uint64
		instance, shared uint32
	}{{43, uint32(devices[1].GPUInstance), 0}, {13, uint32(devices[0].GPUInstance), 0}, {48, none, none}} {
		data := good(set.Wait(5000))(t)
		require.Equal(t, want.xid, data.EventData)
		require.Equal(t, want.instance, data.GpuInstanceId)
		require.Equal(t, want.shared, data.ComputeInstanceId)
		require.Equal(t, second, good(data.Device.GetUUID())(t))
	}
	require.Contains(t, ctlFails(t, s, "xid", "1:2", "13"), "no such GPU: 1:2")
}

// In a container NVML shows the MIG device with its nodes there, as the first of its GPU, and CUDA uses it.
func TestMIGDeviceInAContainer(t *testing.T) {
	s := New(t, Plain, "A100-40GB:mig=3g.20gb,mig=1g.5gb", "T4")
	nodes := t.TempDir()
	s.Ctl("devnodes", "--dev-dir", nodes)
	small := s.Status().GPUs[0].MIG[1]
	for _, minor := range s.Status().GPUs[0].MIG[0].CapMinors {
		require.NoError(t, os.Remove(filepath.Join(nodes, "nvidia-caps", capName(minor))))
	}
	script := `set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir /run/simgpu
touch /run/simgpu/state
mount --bind "$1" /run/simgpu/state
mount -t tmpfs none /mnt
cp -a "$2/nvidia0" "$2/nvidia-caps" /mnt
mount --move /mnt /dev
exec "$3"`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, "sh", s.State, nodes, filepath.Join(s.Dir, "workloads/meminfo"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + filepath.Join(s.Dir, "sim")}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	values := Parse(string(text))
	require.Equal(t, "1", values["device_count"])
	require.Equal(t, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", values["device.0.name"])
	require.EqualValues(t, small.MemoryTotalBytes, values.Int("device.0.total_bytes"))
	require.Equal(t, "1", values["nvml.device_count"])

	t.Setenv("SIMGPU_DEV_DIR", nodes)
	library := openNVML(t, s)
	require.Equal(t, small.UUID, good(migDevice(t, library, 0, 0).GetUUID())(t))
	require.Zero(t, good(good(library.DeviceGetHandleByUUID(small.UUID))(t).GetIndex())(t))
	_, ret := device(t, library, 0).GetMigDeviceHandleByIndex(1)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
}

// NVIDIA's device plugin, GPU feature discovery and DRA driver name a MIG device by the profiles of its two instances.
// Source: NVIDIA/go-nvlib, pkg/nvlib/device/mig_device.go; the numbers: docs.nvidia.com/datacenter/tesla/mig-user-guide, -lgip and -lcip.
func TestRealMIGDeviceHasTwoInstances(t *testing.T) {
	s := New(t, Plain, "H200:mig=on", "T4")
	s.Ctl("mig", "0", "create", "3g.71gb", "1g.18gb+me", "1g.35gb", "1g.18gb")
	library := openNVML(t, s)
	gpu := device(t, library, 0)
	profiles := map[uint32]nvml.GpuInstanceProfileInfo{}
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, ret := gpu.GetGpuInstanceProfileInfo(kind)
		if ret != nvml.ERROR_NOT_SUPPORTED {
			require.Equal(t, nvml.SUCCESS, ret)
			profiles[p.Id] = p
		}
	}
	require.Len(t, profiles, 7)
	require.Equal(t, nvml.GpuInstanceProfileInfo{Id: 9, SliceCount: 3, InstanceCount: 2, MultiprocessorCount: 60, CopyEngineCount: 3,
		DecoderCount: 3, JpegCount: 3, MemorySizeMB: 71168}, profiles[9])
	for i, id := range []uint32{9, 15, 20, 19} { // in order of instances
		mig := migDevice(t, library, 0, i)
		instance := good(gpu.GetGpuInstanceById(good(mig.GetGpuInstanceId())(t)))(t)
		info := good(instance.GetInfo())(t)
		p := profiles[info.ProfileId]
		require.Equal(t, id, info.ProfileId)
		require.EqualValues(t, good(mig.GetGpuInstanceId())(t), info.Id)
		require.Contains(t, good(gpu.GetGpuInstancePossiblePlacements(&p))(t), info.Placement)
		require.Contains(t, good(gpu.GetGpuInstances(&p))(t), instance)
		require.Equal(t, good(mig.GetAttributes())(t).MemorySizeMB, p.MemorySizeMB)
		compute := good(good(instance.GetComputeInstanceById(0))(t).GetInfo())(t)
		whole, ret := instance.GetComputeInstanceProfileInfo(int(compute.ProfileId), nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		require.Equal(t, nvml.SUCCESS, ret)
		require.Equal(t, p.SliceCount, whole.SliceCount)
		require.Equal(t, nvml.ComputeInstancePlacement{Size: p.SliceCount}, compute.Placement)
		require.Len(t, good(instance.GetComputeInstances(&whole))(t), 1)
	}
	for id, left := range map[uint32]int{0: 0, 5: 0, 9: 0, 14: 0, 15: 0, 19: 0, 20: 0} {
		p := profiles[id]
		require.Equal(t, left, good(gpu.GetGpuInstanceRemainingCapacity(&p))(t), id)
	}
	held := good(gpu.GetGpuInstanceById(good(migDevice(t, library, 0, 0).GetGpuInstanceId())(t)))(t)
	s.Ctl("mig", "0", "destroy", "all")
	_, ret := held.GetInfo()
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	for id, p := range profiles {
		require.EqualValues(t, p.InstanceCount, good(gpu.GetGpuInstanceRemainingCapacity(&p))(t), id)
	}
	_, ret = gpu.GetGpuInstanceById(1)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	_, ret = device(t, library, 1).GetGpuInstanceProfileInfo(0)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	s.Ctl("mig", "0", "disable")
	_, ret = gpu.GetGpuInstanceById(1)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
}

// NVML makes and destroys the two instances of a MIG device one after the other, with the errors of its manual.
func TestNVMLMakesMIGDevices(t *testing.T) {
	s := New(t, Plain, "H200:mig=on", "H200")
	library := openNVML(t, s)
	gpu := device(t, library, 0)
	profiles := map[string]nvml.GpuInstanceProfileInfo{}
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		named, ret := gpu.GetGpuInstanceProfileInfoV(kind).V2()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		require.Equal(t, nvml.SUCCESS, ret)
		plain := good(gpu.GetGpuInstanceProfileInfo(kind))(t)
		require.Equal(t, plain.Id, named.Id)
		require.Equal(t, plain.MemorySizeMB, named.MemorySizeMB)
		length := slices.Index(named.Name[:], 0)
		text := make([]byte, length)
		for i := range length {
			text[i] = byte(named.Name[i])
		}
		profiles[string(text)] = plain
	}
	require.Len(t, profiles, 7)
	_, ret := gpu.GetGpuInstanceProfileInfoV(0).V3()
	require.Equal(t, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, ret)
	small, seven := profiles["MIG 1g.18gb"], profiles["MIG 7g.141gb"]
	_, ret = device(t, library, 1).CreateGpuInstance(&small)
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret, "MIG is off")

	first := good(gpu.CreateGpuInstanceWithPlacement(&small, &nvml.GpuInstancePlacement{Start: 2, Size: 1}))(t)
	require.Equal(t, nvml.GpuInstancePlacement{Start: 2, Size: 1}, good(first.GetInfo())(t).Placement)
	_, ret = gpu.CreateGpuInstanceWithPlacement(&small, &nvml.GpuInstancePlacement{Start: 2, Size: 1})
	require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
	_, ret = gpu.CreateGpuInstanceWithPlacement(&small, &nvml.GpuInstancePlacement{Start: 7, Size: 1})
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	_, ret = gpu.CreateGpuInstance(&seven)
	require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
	second := good(gpu.CreateGpuInstance(&small))(t)
	require.Len(t, good(gpu.GetGpuInstances(&small))(t), 2)

	require.Empty(t, s.Status().GPUs[0].MIG, "a MIG device has both instances")
	_, ret = gpu.GetMigDeviceHandleByIndex(0)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	whole := good(first.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0))(t)
	require.Equal(t, []nvml.ComputeInstancePlacement{{Size: 1}}, good(first.GetComputeInstancePossiblePlacements(&whole))(t))
	require.Equal(t, 1, good(first.GetComputeInstanceRemainingCapacity(&whole))(t))
	require.Empty(t, good(first.GetComputeInstances(&whole))(t))
	compute := good(first.CreateComputeInstance(&whole))(t)
	require.Zero(t, good(first.GetComputeInstanceRemainingCapacity(&whole))(t))
	require.Zero(t, good(compute.GetInfo())(t).Id)
	_, ret = first.CreateComputeInstance(&whole)
	require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
	require.Len(t, s.Status().GPUs[0].MIG, 1)

	holder := s.Start("workloads/hold", "--mib=1")
	require.Equal(t, nvml.ERROR_IN_USE, compute.Destroy(), "a process has it")
	require.Equal(t, nvml.ERROR_IN_USE, first.Destroy())
	holder.Kill()
	require.Equal(t, nvml.ERROR_IN_USE, first.Destroy(), "it has a compute instance")
	require.Equal(t, nvml.SUCCESS, compute.Destroy())
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, compute.Destroy())
	require.Equal(t, nvml.SUCCESS, first.Destroy())
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, first.Destroy())
	require.Equal(t, nvml.SUCCESS, second.Destroy())
	require.Equal(t, 1, good(gpu.GetGpuInstanceRemainingCapacity(&seven))(t))
}

// Which of both holds on real GPUs is not known: NVIDIA's DRA driver expects another UUID after each creation.
func TestUUIDsOfMIGDevicesByCreation(t *testing.T) {
	for setting, same := range map[string]bool{"place": true, "creation": false} {
		s := New(t, Plain, "H200:mig=on,mig_uuid="+setting)
		seen := map[string]bool{}
		for range 3 {
			s.Ctl("mig", "0", "create", "3g.71gb:4")
			seen[s.Status().GPUs[0].MIG[0].UUID] = true
			s.Ctl("mig", "0", "destroy", "all")
		}
		require.Equal(t, same, len(seen) == 1, setting)
	}
}
