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

// onRequest is a node with a GPU in MIG mode, of which one place has a MIG device that others made, and one its own.
func onRequest() devices.Node {
	gpu := h200(0)
	gpu.GPU.MIGEnabled = true
	half := []hardware.Place{{Start: 0, Size: 4}, {Start: 4, Size: 4}}
	gpu.GPU.Profiles = []hardware.MIGProfile{
		{ID: 9, Name: "3g.71gb", MemoryMiB: 71168, Slices: 3, Most: 2, Places: half},
		{ID: 20, Name: "1g.18gb+me", MemoryMiB: 16384, Slices: 1, Most: 1, Places: []hardware.Place{{Start: 5, Size: 1}, {Start: 6, Size: 1}}},
		{ID: 0, Name: "7g.141gb", MemoryMiB: 143104, Slices: 7, Most: 1, Places: []hardware.Place{{Start: 0, Size: 8}}},
	}
	gpu.GPU.Instances = []hardware.GPUInstance{{ID: 1, Profile: 5, Place: half[0]}, {ID: 2, Profile: 9, Place: half[1]}}
	made := devices.Device{Capacity: grant.GPU{UUID: mig, MemoryMiB: 71168, CorePercent: 100, Replicas: 1, Parent: uuid(0)}, GPU: gpu.GPU, Profile: "3g.71gb", OnRequest: true}
	n := node(made)
	n.Places = devices.PlacesOf(gpu, func(i hardware.GPUInstance) bool { return i.ID == 2 })
	n.Places[0].UUID = mig
	n.Places[1].Occupied = true
	return n
}

// A GPU can have fewer instances of a profile than it has places for them: those of an administrator count.
func TestForeignInstancesCount(t *testing.T) {
	gpu := h200(0)
	var places []hardware.Place
	for start := range 4 {
		places = append(places, hardware.Place{Start: start, Size: 1})
	}
	gpu.GPU.Profiles = []hardware.MIGProfile{{ID: 20, Name: "1g.18gb+me", Slices: 1, Most: 2, Places: places}}
	gpu.GPU.Instances = []hardware.GPUInstance{{ID: 1, Profile: 20, Place: places[0]}, {ID: 2, Profile: 20, Place: places[1]}}
	profiles := slices.Clone(gpu.GPU.Profiles)
	for foreign, most := range []int64{2, 1, 0} {
		n := node()
		n.Places = devices.PlacesOf(gpu, func(i hardware.GPUInstance) bool { return i.ID > foreign })
		require.Equal(t, profiles, gpu.GPU.Profiles, "they are the reading's")
		if most == 0 {
			require.Empty(t, n.Places)
			continue
		}
		require.Len(t, n.Places, 4-foreign)
		for _, pool := range n.Pools() {
			for _, s := range pool.Slices {
				for _, set := range s.SharedCounters {
					left := set.Counters["profile-20"]
					require.Equal(t, most, left.Value.Value())
				}
			}
		}
	}
}

func TestNamesOfPlaces(t *testing.T) {
	long := devices.Place{Device: h200(0), At: hardware.Place{Start: 6, Size: 1}}
	seen := map[string]bool{}
	for _, profile := range []string{"1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx", "2g.48gb-me", "7g.141gb"} {
		long.Kind.Name = profile
		require.Regexp(t, `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])$`, long.Name())
		require.False(t, seen[long.Name()])
		seen[long.Name()] = true
	}
}

func TestAllocationOfAPlace(t *testing.T) {
	n := onRequest()
	r := result{Request: "r", Driver: "gpu.gpuslice.io", Pool: "node-1/h200", Device: n.Places[0].Name()}
	require.Equal(t, n.Places[:1], n.Allocated(claim(r)))
	got, err := n.Allocation(claim(r))
	require.NoError(t, err)
	require.Equal(t, []grant.Share{{UUID: mig, MemoryMiB: 71168, CorePercent: 100}}, got.Shares())
	n.Places[0].UUID = ""
	_, err = n.Allocation(claim(r))
	require.ErrorIs(t, err, grant.ErrUnknownGPU)
	require.ErrorContains(t, err, "not made yet")
	n.Places[0].UUID = mig
	_, err = n.Allocation(claim(change(r, func(r *result) { r.ConsumedCapacity = consumed("memory", "1Gi") })))
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = n.Allocation(claim(change(r, func(r *result) { r.Device = n.Devices[0].Name() })))
	require.ErrorIs(t, err, grant.ErrUnknownGPU, "it is offered by its place")
}

// The golden files are validated by the API server's own code in cmd/gpuslice-scheduler/examples.
func TestPools(t *testing.T) {
	long := node(h200(0))
	long.Name = strings.Repeat("n.", 126) + "n"
	long.Devices[0].GPU.Model = strings.Repeat("A very long model ", 6) + "ÄÖÜ"
	bare := devices.Node{Name: "node-1", DriverVersion: "unknown", Devices: []devices.Device{{Capacity: grant.GPU{UUID: uuid(0), MemoryMiB: 2, CorePercent: 1, Replicas: 1}, GPU: hardware.GPU{NUMANode: hardware.NUMAUnknown}}}}
	away := node(h200(0))
	away.NotConnected = true
	for name, n := range map[string]devices.Node{"one": node(h200(0)), "mixed": mixed(), "long": long, "bare": bare, "not-connected": away, "on-request": onRequest()} {
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

func TestIsolationAttribute(t *testing.T) {
	for enforcement, shared := range map[string]string{"": "limiter", "limiter": "limiter", "native": "driver", "native+limiter": "driver"} {
		n := mixed()
		n.MemoryEnforcement = enforcement
		n.Devices = append(n.Devices, h200(4))
		n.Places = onRequest().Places[:1]
		var got []string
		for _, pool := range slices.Sorted(maps.Keys(n.Pools())) {
			for _, s := range n.Pools()[pool].Slices {
				for _, d := range s.Devices {
					got = append(got, *d.Attributes["isolation"].StringValue)
				}
			}
		}
		// In the order of the pools: a MIG device and a place for one beside GPUs, and an oversubscribed GPU.
		require.Equal(t, []string{shared, shared, "hardware", shared, "hardware", "limiter"}, got, enforcement)
	}
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
