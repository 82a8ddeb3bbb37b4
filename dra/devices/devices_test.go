package devices_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/test/golden"
)

func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i) }

const mig = "MIG-11111111-0000-4000-8000-000000000001"

func h200(i int) devices.Device {
	gpu := hardware.GPU{
		UUID: uuid(i), Index: i, Model: "NVIDIA H200", MemoryMiB: 143771, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", i+0x1b), NUMANode: i / 4, ComputeCapability: "9.0",
	}
	return devices.Device{Capacity: grant.GPU{UUID: gpu.UUID, MemoryMiB: gpu.MemoryMiB, CorePercent: 100, Replicas: 10}, GPU: gpu, PCIeRoot: "pci0000:1a"}
}

func node(list ...devices.Device) devices.Node {
	return devices.Node{Name: "node-1", DriverVersion: "570.172.08", CUDAVersion: "12.8", Devices: list}
}

func mixed() devices.Node {
	cut := hardware.GPU{UUID: uuid(2), Model: "NVIDIA H200", NUMANode: hardware.NUMAUnknown, MIGEnabled: true}
	t4 := hardware.GPU{UUID: uuid(3), Model: "Tesla T4", MemoryMiB: 15360, NUMANode: hardware.NUMAUnknown}
	ill, cordoned := h200(1), h200(0)
	ill.Problem, ill.Cordoned, cordoned.Cordoned = "XID 79", true, true
	return node(cordoned, ill,
		devices.Device{Capacity: grant.GPU{UUID: mig, MemoryMiB: 16384, CorePercent: 100, Replicas: 1, Parent: uuid(2)}, GPU: cut, Profile: "1g.18gb"},
		devices.Device{Capacity: grant.GPU{UUID: uuid(3), MemoryMiB: 30720, CorePercent: 200, Replicas: 20}, GPU: t4},
	)
}

// The golden files are validated by the API server's own code in cmd/gpuslice-scheduler/examples.
func TestPools(t *testing.T) {
	long := node(h200(0))
	long.Name = strings.Repeat("n.", 126) + "n"
	long.Devices[0].GPU.Model = strings.Repeat("A very long model ", 6) + "ÄÖÜ"
	bare := devices.Node{Name: "node-1", DriverVersion: "unknown", Devices: []devices.Device{{Capacity: grant.GPU{UUID: uuid(0), MemoryMiB: 2, CorePercent: 1, Replicas: 1}, GPU: hardware.GPU{NUMANode: hardware.NUMAUnknown}}}}
	away := node(h200(0))
	away.NotConnected = true
	for name, n := range map[string]devices.Node{"one": node(h200(0)), "mixed": mixed(), "long": long, "bare": bare, "not-connected": away} {
		t.Run(name, func(t *testing.T) {
			pools := n.Pools()
			require.Equal(t, pools, n.Pools())
			var slicesOf []resourceapi.ResourceSlice
			for _, pool := range slices.Sorted(maps.Keys(pools)) {
				for i, s := range pools[pool].Slices {
					slicesOf = append(slicesOf, resourceapi.ResourceSlice{
						TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
						ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s", i, strings.ReplaceAll(pool, "/", "-"))},
						Spec: resourceapi.ResourceSliceSpec{
							Driver: api.DRADriver, NodeName: &n.Name, Devices: s.Devices, SharedCounters: s.SharedCounters,
							Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(pools[pool].Slices))},
						},
					})
				}
			}
			text, err := json.MarshalIndent(slicesOf, "", " ")
			require.NoError(t, err)
			golden.Check(t, filepath.Join("testdata", name+".json"), string(text)+"\n")
		})
	}
	require.Empty(t, devices.Node{Name: "node-1"}.Pools())
}

// The API server allows 64 devices with taints in a slice.
func TestManyGPUs(t *testing.T) {
	var n devices.Node
	for i := range 130 {
		n.Devices = append(n.Devices, h200(i))
	}
	pools := n.Pools()
	require.Len(t, pools, 1)
	var names []string
	for _, s := range pools["/h200"].Slices {
		require.LessOrEqual(t, len(s.Devices), resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures)
		for _, d := range s.Devices {
			names = append(names, d.Name)
		}
	}
	require.Len(t, pools["/h200"].Slices, 3)
	for i, d := range n.Devices {
		require.Equal(t, d.Name(), names[i], "in the given order")
	}
}

// A device keeps its name and its pool when NVML numbers the GPUs again.
func TestNamesFollowFromUUIDs(t *testing.T) {
	n := node(h200(7))
	before := n.Devices[0].Name()
	n.Devices[0].GPU.Index = 0
	require.Equal(t, before, n.Devices[0].Name())
	require.Equal(t, "gpu-00000000-0000-4000-8000-000000000007", before)
	require.Equal(t, "node-1/h200", n.Pool(n.Devices[0]))
	seen := map[string]bool{}
	for _, d := range mixed().Devices {
		require.False(t, seen[d.Name()])
		seen[d.Name()] = true
	}
	names := map[string]string{}
	for _, model := range []string{"NVIDIA H200", "Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA", "", "///", "NVIDIA A100-SXM4-80GB"} {
		names[model] = n.Pool(devices.Device{GPU: hardware.GPU{Model: model}})
	}
	require.Equal(t, map[string]string{
		"NVIDIA H200": "node-1/h200", "Tesla T4": "node-1/tesla-t4", "NVIDIA GeForce RTX 4090": "node-1/geforce-rtx-4090",
		"NVIDIA": "node-1/nvidia", "": "node-1/gpu", "///": "node-1/gpu", "NVIDIA A100-SXM4-80GB": "node-1/a100-sxm4-80gb",
	}, names)
}
