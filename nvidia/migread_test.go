package nvidia

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// migUUIDOf is a MIG device's UUID in these tests.
func migUUIDOf(gpu, place int) string {
	return fmt.Sprintf("MIG-%08x-5151-4000-8000-%012x", gpu, place)
}

// migMock is a MIG device that NVML knows: seven of a GPU fit.
func migMock(gpu, place int, profile string, mib uint64) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return migUUIDOf(gpu, place), nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB MIG " + profile, nvml.SUCCESS },
		GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: mib << 20}, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return place + 7, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{GpuInstanceSliceCount: 1, ComputeInstanceSliceCount: 1, MemorySizeMB: mib}, nvml.SUCCESS
		},
	}
}

// cutUp puts a GPU of a mock into MIG mode; a nil is an empty place. What it gives
// changes the places.
func cutUp(d *server.Device, places ...*mock.Device) (change func(...*mock.Device)) {
	var current atomic.Pointer[[]*mock.Device]
	current.Store(&places)
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		places := *current.Load()
		if i >= len(places) || places[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return places[i], nvml.SUCCESS
	}
	return func(places ...*mock.Device) { current.Store(&places) }
}

func TestReadMIG(t *testing.T) {
	s := dgxa100.New()
	cutUp(s.Devices[1].(*server.Device), migMock(1, 0, "1g.5gb", 4864), nil, migMock(1, 2, "1g.5gb+me", 4864))
	cutUp(s.Devices[2].(*server.Device))
	node, err := Discover(s)
	require.NoError(t, err)
	require.Empty(t, node.Faults)
	require.Len(t, node.GPUs, 8)
	parent := node.GPUs[1].UUID
	assert.True(t, node.GPUs[1].MIGEnabled)
	assert.Equal(t, []MIGDevice{
		{UUID: migUUIDOf(1, 0), GPU: parent, Profile: "1g.5gb", MemoryMiB: 4864, GPUInstance: 7, Slices: 1},
		{UUID: migUUIDOf(1, 2), GPU: parent, Profile: "1g.5gb+me", MemoryMiB: 4864, GPUInstance: 9, Slices: 1},
	}, node.GPUs[1].MIG)
	assert.True(t, node.GPUs[2].MIGEnabled)
	assert.Empty(t, node.GPUs[2].MIG)
	assert.False(t, node.GPUs[0].MIGEnabled)
	assert.True(t, node.GPUs[0].MIGCapable)
}

// What a driver or GPU lacks is no MIG, and no fault.
func TestReadMIGWithoutIt(t *testing.T) {
	for _, symbol := range migSymbols {
		t.Run("no "+symbol, func(t *testing.T) {
			s := dgxa100.New()
			cutUp(s.Devices[0].(*server.Device), migMock(0, 0, "1g.5gb", 4864))
			s.LookupSymbolFunc = func(asked string) error {
				if asked == symbol {
					return nvml.ERROR_FUNCTION_NOT_FOUND
				}
				return nil
			}
			node, err := Discover(s)
			require.NoError(t, err)
			require.Empty(t, node.Faults)
			assert.False(t, node.GPUs[0].MIGEnabled)
		})
	}
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND} {
		s := dgxa100.New()
		s.Devices[0].(*server.Device).GetMigModeFunc = func() (int, int, nvml.Return) { return 1, 1, ret }
		node, err := Discover(s)
		require.NoError(t, err)
		require.Empty(t, node.Faults)
		assert.False(t, node.GPUs[0].MIGEnabled)
	}
}

// What can't be read is a fault: the GPU's where it is of the GPU, the MIG device's
// where it is that one's, and the others are read.
func TestReadMIGFaults(t *testing.T) {
	const lost = nvml.ERROR_GPU_IS_LOST
	for _, tt := range []struct {
		description string
		breakIt     func(gpu *server.Device, d *mock.Device)
		call        string
		whole, uuid bool
	}{
		{"no mode", func(c *server.Device, _ *mock.Device) {
			c.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, lost }
		}, "nvmlDeviceGetMigMode", true, true},
		{"no count", func(c *server.Device, _ *mock.Device) {
			c.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, lost }
		}, "nvmlDeviceGetMaxMigDeviceCount", true, true},
		{"no handle", func(c *server.Device, d *mock.Device) {
			handle := c.GetMigDeviceHandleByIndexFunc
			c.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if found, ret := handle(i); found != d {
					return found, ret
				}
				return nil, lost
			}
		}, "MIG device 1 of GPU 3 (GPU-", false, false},
		{"no UUID", func(_ *server.Device, d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", lost }
		}, "nvmlDeviceGetUUID", false, false},
		{"a UUID as before 470", func(_ *server.Device, d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) {
				return "MIG-GPU-00000001-5151-4000-8000-000000000001/1/0", nvml.SUCCESS
			}
		}, "update the driver to 470", false, false},
		{"no memory info", func(_ *server.Device, d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, lost }
		}, "nvmlDeviceGetMemoryInfo", false, true},
		{"no memory", func(_ *server.Device, d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.SUCCESS }
		}, "0 bytes", false, true},
		{"no GPU instance", func(_ *server.Device, d *mock.Device) {
			d.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return 0, lost }
		}, "nvmlDeviceGetGpuInstanceId", false, true},
		{"no compute instance", func(_ *server.Device, d *mock.Device) {
			d.GetComputeInstanceIdFunc = func() (int, nvml.Return) { return 0, lost }
		}, "nvmlDeviceGetComputeInstanceId", false, true},
		{"no name", func(_ *server.Device, d *mock.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", lost }
		}, "nvmlDeviceGetName", false, true},
		{"no attributes", func(_ *server.Device, d *mock.Device) {
			d.GetAttributesFunc = func() (nvml.DeviceAttributes, nvml.Return) { return nvml.DeviceAttributes{}, lost }
		}, "nvmlDeviceGetAttributes", false, true},
		{"no profile at all", func(_ *server.Device, d *mock.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "NVIDIA X", nvml.SUCCESS }
			d.GetAttributesFunc = func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{}, nvml.ERROR_NOT_SUPPORTED
			}
		}, `"NVIDIA X" has no profile`, false, true},
	} {
		t.Run(tt.description, func(t *testing.T) {
			s := dgxa100.New()
			gpu, broken := s.Devices[3].(*server.Device), migMock(3, 1, "1g.5gb", 4864)
			cutUp(gpu, migMock(3, 0, "1g.5gb", 4864), broken)
			tt.breakIt(gpu, broken)
			node, err := Discover(s)
			require.NoError(t, err)
			require.Len(t, node.Faults, 1)
			fault := node.Faults[0]
			assert.ErrorContains(t, fault, tt.call)
			assert.Equal(t, 3, fault.Index)
			assert.Equal(t, tt.uuid, fault.UUID != "")
			if tt.whole {
				assert.Equal(t, gpu.UUID, fault.UUID)
				assert.Len(t, node.GPUs, 7)
				return
			}
			assert.Equal(t, gpu.UUID, fault.GPU)
			if tt.uuid {
				assert.Equal(t, migUUIDOf(3, 1), fault.UUID)
			}
			require.Len(t, node.GPUs, 8)
			require.Len(t, node.GPUs[3].MIG, 1)
			assert.Equal(t, migUUIDOf(3, 0), node.GPUs[3].MIG[0].UUID)
		})
	}
}

// One that is destroyed while it is read is not there.
func TestReadMIGThatGoesUnderTheReader(t *testing.T) {
	s := dgxa100.New()
	going := migMock(0, 0, "1g.5gb", 4864)
	going.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_FOUND }
	cutUp(s.Devices[0].(*server.Device), going, migMock(0, 1, "1g.5gb", 4864))
	node, err := Discover(s)
	require.NoError(t, err)
	assert.Empty(t, node.Faults)
	require.Len(t, node.GPUs[0].MIG, 1)
	assert.Equal(t, migUUIDOf(0, 1), node.GPUs[0].MIG[0].UUID)
}

func TestMIGProfile(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb":       "1g.5gb",
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me":   "1g.10gb+me",
		"NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb":   "1c.2g.20gb",
		"NVIDIA RTX PRO 6000 MIG 1g.24gb-me":     "1g.24gb-me",
		"NVIDIA RTX PRO 6000 MIG 1g.24gb+me.all": "1g.24gb+me.all",
		"NVIDIA H100 80GB HBM3":                  "",
		"MIG ":                                   "",
		"NVIDIA H100 MIG 1g.10gb/../x":           "",
		"NVIDIA H100 MIG 0g.10gb":                "",
		"":                                       "",
	} {
		assert.Equal(t, want, profileOf(name), "%q", name)
	}
	for name, want := range map[string]string{"MIG 1g.10gb+me": "1g.10gb+me", "1g.10gb+me": "1g.10gb+me", "x 1g.10gb": "", "MIG": "", "": ""} {
		assert.Equal(t, want, profileNamed(name), "%q", name)
	}
	for _, tt := range []struct {
		gi, ci, ofa uint32
		mib         uint64
		gpu         int64
		want        string
	}{
		{1, 1, 0, 4864, 40960, "1g.5gb"},
		{1, 1, 1, 4864, 40960, "1g.5gb+me"},
		{2, 2, 0, 9984, 40960, "2g.10gb"},
		{2, 1, 0, 9984, 40960, "1c.2g.10gb"},
		{3, 3, 0, 20096, 40960, "3g.20gb"},
		{7, 7, 1, 40192, 40960, "7g.40gb"},
		{1, 1, 0, 9856, 81920, "1g.10gb"},
		{3, 3, 0, 40192, 81920, "3g.40gb"},
		{1, 1, 0, 16384, 143771, "1g.18gb"},
		{0, 0, 0, 16384, 143771, ""},
		{1, 1, 0, 0, 143771, ""},
		{1, 1, 0, 4864, 0, ""},
	} {
		got := profileFrom(nvml.DeviceAttributes{
			GpuInstanceSliceCount: tt.gi, ComputeInstanceSliceCount: tt.ci, SharedOfaCount: tt.ofa, MemorySizeMB: tt.mib,
		}, tt.gpu)
		assert.Equal(t, tt.want, got)
		if got != "" {
			assert.Equal(t, got, profileOf("MIG "+got), "a computed name is one that is read")
			assert.NotContains(t, MIGDevice{Profile: got}.ResourceName(), "+")
			assert.True(t, strings.HasPrefix(MIGDevice{Profile: got}.ResourceName(), "mig-"))
		}
	}
}
