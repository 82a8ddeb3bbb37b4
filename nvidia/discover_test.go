package nvidia

import (
	"encoding/json"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDiscoverMocks(t *testing.T) {
	tests := []struct {
		description string
		server      *server.Server
		model       string
		memoryMiB   int64
		capability  string
		cuda        string
	}{
		{"DGX A100", dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", 40960, "8.0", "12.4"},
		{"DGX H200", dgxh200.New(), "NVIDIA H200 141GB HBM3e", 144384, "9.0", "12.4"},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			node, err := Discover(tt.server)
			require.NoError(t, err)
			assert.Empty(t, node.Faults)
			assert.Equal(t, tt.cuda, node.CUDAVersion)
			assert.Equal(t, tt.server.DriverVersion, node.DriverVersion)
			require.Len(t, node.GPUs, 8)
			for i, gpu := range node.GPUs {
				want := GPU{
					UUID:              tt.server.Devices[i].(*server.Device).UUID,
					Index:             i,
					Minor:             i,
					Model:             tt.model,
					MemoryMiB:         tt.memoryMiB,
					NUMANode:          NUMAUnknown,
					ComputeCapability: tt.capability, MIGCapable: true,
				}
				assert.Equal(t, want, gpu)
				found, ok := node.GPU(gpu.UUID)
				assert.True(t, ok)
				assert.Equal(t, gpu, found)
			}
			_, ok := node.GPU("GPU-none")
			assert.False(t, ok)
			assert.Equal(t, "/dev/nvidia7", node.GPUs[7].DevicePath())
			assert.Len(t, tt.server.InitCalls(), 1)
			assert.Len(t, tt.server.ShutdownCalls(), 1, "Discover closes NVML")
		})
	}
}

func TestDiscoverFails(t *testing.T) {
	tests := []struct {
		description string
		breakIt     func(*server.Server)
		want        nvml.Return
		texts       []string
		shutdowns   int
	}{
		{
			"no driver on this machine",
			func(s *server.Server) { s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND } },
			nvml.ERROR_LIBRARY_NOT_FOUND, []string{"the driver", "nvmlInit", "libnvidia-ml.so.1", "install"}, 0,
		},
		{
			"module not loaded",
			func(s *server.Server) { s.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED } },
			nvml.ERROR_DRIVER_NOT_LOADED, []string{"nvmlInit", "modprobe nvidia"}, 0,
		},
		{
			"driver updated under way",
			func(s *server.Server) { s.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH } },
			nvml.ERROR_LIB_RM_VERSION_MISMATCH, []string{"restart"}, 0,
		},
		{
			"no version",
			func(s *server.Server) {
				s.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
			},
			nvml.ERROR_UNKNOWN, []string{"nvmlSystemGetDriverVersion"}, 1,
		},
		{
			"no CUDA version",
			func(s *server.Server) {
				s.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
			},
			nvml.ERROR_UNKNOWN, []string{"nvmlSystemGetCudaDriverVersion"}, 1,
		},
		{
			"no count",
			func(s *server.Server) {
				s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NO_PERMISSION }
			},
			nvml.ERROR_NO_PERMISSION, []string{"nvmlDeviceGetCount", "run as root"}, 1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			s := dgxa100.New()
			tt.breakIt(s)
			_, err := Discover(s)
			require.ErrorIs(t, err, tt.want)
			for _, text := range tt.texts {
				assert.ErrorContains(t, err, text)
			}
			assert.Len(t, s.ShutdownCalls(), tt.shutdowns)
		})
	}
}

// A GPU that can't be read is a fault with its index, its UUID if that could be
// read, and the call; the others are read.
func TestDiscoverFaults(t *testing.T) {
	tests := []struct {
		description string
		breakIt     func(*server.Server, *server.Device)
		call        string
		hasUUID     bool
	}{
		{"no handle", func(s *server.Server, _ *server.Device) {
			handle := s.DeviceGetHandleByIndexFunc
			s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if i == 2 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return handle(i)
			}
		}, "nvmlDeviceGetHandleByIndex", false},
		{"no UUID", func(_ *server.Server, d *server.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetUUID", false},
		{"empty UUID", func(_ *server.Server, d *server.Device) { d.UUID = "" }, "nvmlDeviceGetUUID", false},
		{"UUID of another", func(s *server.Server, d *server.Device) { d.UUID = s.Devices[0].(*server.Device).UUID }, "is also the UUID of GPU 0", true},
		{"no name", func(_ *server.Server, d *server.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetName", true},
		{"no minor", func(_ *server.Server, d *server.Device) {
			d.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetMinorNumber", true},
		{"no memory info", func(_ *server.Server, d *server.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetMemoryInfo", true},
		{"no memory", func(_ *server.Server, d *server.Device) { d.MemoryInfo = nvml.Memory{Total: 4096} }, "nvmlDeviceGetMemoryInfo", true},
		{"no compute capability", func(_ *server.Server, d *server.Device) {
			d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetCudaComputeCapability", true},
		{"no PCI info", func(_ *server.Server, d *server.Device) {
			d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_GPU_IS_LOST }
		}, "nvmlDeviceGetPciInfo", true},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			s := dgxa100.New()
			broken := s.Devices[2].(*server.Device)
			tt.breakIt(s, broken)
			node, err := Discover(s)
			require.NoError(t, err)
			assert.Len(t, node.GPUs, 7)
			require.Len(t, node.Faults, 1)
			fault := node.Faults[0]
			assert.Equal(t, 2, fault.Index)
			assert.ErrorContains(t, fault, "GPU 2")
			assert.ErrorContains(t, fault, tt.call)
			assert.Equal(t, tt.hasUUID, fault.UUID != "")
			if tt.hasUUID {
				assert.Equal(t, broken.UUID, fault.UUID)
			}
			data, err := json.Marshal(node)
			require.NoError(t, err)
			assert.Contains(t, string(data), fault.Message[:10])
		})
	}
}

func TestDiscoverOptionalFacts(t *testing.T) {
	s := dgxa100.NewWithGPUs()
	d := dgxa100.NewDevice(0)
	s.Devices = []nvml.Device{d}
	d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_FUNCTION_NOT_FOUND }
	node, err := Discover(s)
	require.NoError(t, err)
	require.Empty(t, node.Faults)
	assert.Empty(t, node.GPUs[0].ComputeCapability)
	assert.Empty(t, node.GPUs[0].PCIBusID)
}

func TestNUMANode(t *testing.T) {
	sys := fstest.MapFS{
		"bus/pci/devices/0000:3b:00.0/numa_node":  {Data: []byte("1\n")},
		"bus/pci/devices/0000:5e:00.0/numa_node":  {Data: []byte("-1\n")},
		"bus/pci/devices/10000:01:00.0/numa_node": {Data: []byte("3\n")},
		"bus/pci/devices/0000:af:00.0/numa_node":  {Data: []byte("what\n")},
	}
	numaNVML := func(node int, ret nvml.Return) func() (int, nvml.Return) {
		return func() (int, nvml.Return) { return node, ret }
	}
	tests := []struct {
		description string
		busID       string
		symbol      error
		nvml        func() (int, nvml.Return)
		want        int
		fault       bool
	}{
		{"by the kernel, NVML not asked", "00000000:3B:00.0", nil, nil, 1, false},
		{"the kernel has none", "00000000:5E:00.0", nil, nil, NUMAUnknown, false},
		{"a domain of five digits", "00010000:01:00.0", nil, nil, 3, false},
		{"the kernel's answer is no number, NVML's is", "00000000:AF:00.0", nil, numaNVML(2, nvml.SUCCESS), 2, false},
		{"unknown to the kernel, NVML knows", "00000000:AA:00.0", nil, numaNVML(0, nvml.SUCCESS), 0, false},
		{"unknown to both", "00000000:AA:00.0", nil, numaNVML(0, nvml.ERROR_NOT_SUPPORTED), NUMAUnknown, false},
		{"NVML has none", "00000000:AA:00.0", nil, numaNVML(-1, nvml.SUCCESS), NUMAUnknown, false},
		{"a driver without the call is not called", "00000000:AA:00.0", assert.AnError, nil, NUMAUnknown, false},
		{"NVML fails", "00000000:AA:00.0", nil, numaNVML(0, nvml.ERROR_GPU_IS_LOST), NUMAUnknown, true},
		{"no bus ID, no reading", "", nil, nil, NUMAUnknown, false},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			s := dgxa100.New()
			s.LookupSymbolFunc = func(string) error { return tt.symbol }
			s.ExtensionsFunc = func() nvml.ExtendedInterface {
				return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return tt.symbol }}
			}
			d := s.Devices[0].(*server.Device)
			d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
				var info nvml.PciInfo
				setCString(info.BusId[:], tt.busID)
				return info, nvml.SUCCESS
			}
			d.GetNumaNodeIdFunc = tt.nvml
			gpu, err := reader{lib: s, numa: sysfsNUMA(sys)}.gpu(0)
			assert.Equal(t, tt.fault, err != nil, "error: %v", err)
			assert.Equal(t, tt.want, gpu.NUMANode)
			assert.Equal(t, tt.busID, gpu.PCIBusID)
		})
	}
}

// setCString is the reverse of cString.
func setCString[T int8 | uint8](chars []T, text string) {
	for i := range text {
		chars[i] = T(text[i])
	}
}

func TestContextMiB(t *testing.T) {
	for model, want := range map[string]int64{
		"NVIDIA H200": 520, "NVIDIA A100-SXM4-80GB": 420, "Tesla T4": 105, "NVIDIA L40S": 520, "": 520,
	} {
		require.Equal(t, want, GPU{Model: model}.ContextMiB(), model)
	}
}
