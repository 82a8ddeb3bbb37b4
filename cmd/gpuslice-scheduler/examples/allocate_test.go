package examples

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// allocating is kube-scheduler's allocator on a node's ResourceSlices, with the features that are on in Kubernetes 1.36.
type allocating struct {
	t       *testing.T
	node    devices.Node
	devices sets.Set[structured.DeviceID]
	shares  sets.Set[structured.SharedDeviceID]
	used    structured.ConsumedCapacityCollection
}

// classes are the chart's DeviceClasses.
type classes struct{}

func (classes) Get(name string) (*resourcev1.DeviceClass, error) {
	for _, kind := range []string{"gpu", "mig"} {
		if name == kind+".gpuslice.io" {
			return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
				CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf(`device.driver == "gpu.gpuslice.io" && device.attributes["gpu.gpuslice.io"].type == %q`, kind)},
			}}}}, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "deviceclasses"}, name)
}

func (classes) List() ([]*resourcev1.DeviceClass, error) { return nil, nil }

func newAllocating(t *testing.T, list ...devices.Device) *allocating {
	return &allocating{
		t: t, node: devices.Node{Name: "n", DriverVersion: "570.172.08", CUDAVersion: "12.8", Devices: list},
		devices: sets.New[structured.DeviceID](), shares: sets.New[structured.SharedDeviceID](), used: structured.NewConsumedCapacityCollection(),
	}
}

func gpuDevice(i int) devices.Device {
	uuid := fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i)
	return devices.Device{Capacity: grant.GPU{UUID: uuid, MemoryMiB: 143771, CorePercent: 100, Replicas: 3}, GPU: hardware.GPU{UUID: uuid, Model: "NVIDIA H200", NUMANode: i}}
}

// asks is a request for devices of a class; pairs are capacities.
func asks(name, class string, count int64, pairs ...string) resourcev1.DeviceRequest {
	exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}
	if len(pairs) > 0 {
		exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{}}
		for i := 0; i < len(pairs); i += 2 {
			exactly.Capacity.Requests[resourcev1.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
	}
	return resourcev1.DeviceRequest{Name: name, Exactly: exactly}
}

// allocate returns what a new ResourceClaim has of the node's GPUs; false: kube-scheduler finds nothing.
func (a *allocating) allocate(spec resourcev1.DeviceClaim) (devices.Allocation, bool) {
	var list []*resourcev1.ResourceSlice
	pools := a.node.Pools()
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		for i, s := range pools[pool].Slices {
			list = append(list, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(pool, i)}, Spec: resourcev1.ResourceSliceSpec{
				Driver: api.DRADriver, NodeName: &a.node.Name, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourcev1.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(pools[pool].Slices))},
			}})
		}
	}
	allocator, err := structured.NewAllocator(a.t.Context(),
		structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true},
		structured.AllocatedState{AllocatedDevices: a.devices, AllocatedSharedDeviceIDs: a.shares, AggregatedCapacity: a.used},
		classes{}, list, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	require.NoError(a.t, err)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: types.UID("uid")}, Spec: resourcev1.ResourceClaimSpec{Devices: spec}}
	results, err := allocator.Allocate(a.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node.Name}}, []*resourcev1.ResourceClaim{claim})
	require.NoError(a.t, err)
	if len(results) == 0 {
		return devices.Allocation{}, false
	}
	claim.Status.Allocation = &results[0]
	for _, r := range results[0].Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			a.devices.Insert(id)
			continue
		}
		a.shares.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		a.used.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
	a.make(claim)
	got, err := a.node.Allocation(claim)
	require.NoError(a.t, err, "the driver understands what kube-scheduler allocates")
	return got, true
}

func madeUUID(profile, start int) string {
	return fmt.Sprintf("MIG-00000000-0000-4000-%04d-%012d", profile, start)
}

// make adds the MIG devices that the driver makes for a ResourceClaim.
func (a *allocating) make(claim *resourcev1.ResourceClaim) {
	for _, p := range a.node.Allocated(claim) {
		uuid := madeUUID(p.Kind.ID, p.At.Start)
		for i := range a.node.Places {
			if a.node.Places[i].Name() == p.Name() {
				a.node.Places[i].UUID = uuid
			}
		}
		a.node.Devices = append(a.node.Devices, devices.Device{Capacity: grant.GPU{UUID: uuid, MemoryMiB: p.Kind.MemoryMiB, CorePercent: 100, Replicas: 1}, GPU: p.GPU, OnRequest: true})
	}
}

func (a *allocating) gets(r resourcev1.DeviceRequest) []grant.Share {
	a.t.Helper()
	got, ok := a.allocate(resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}})
	require.True(a.t, ok)
	require.Len(a.t, got.Requests, 1)
	return got.Shares()
}

func (a *allocating) getsNothing(r resourcev1.DeviceRequest) {
	a.t.Helper()
	got, ok := a.allocate(resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}})
	require.False(a.t, ok, "%v", got)
}

// kube-scheduler allocates shares of the ResourceSlices, and the driver reads them.
func TestAllocation(t *testing.T) {
	const gpu, mig = "gpu.gpuslice.io", "mig.gpuslice.io"
	first, second := gpuDevice(0).Capacity.UUID, gpuDevice(1).Capacity.UUID

	t.Run("shares", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0))
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 30 << 10, CorePercent: 30}}, a.gets(asks("r", gpu, 1, "memory", "30Gi", "cores", "30")))
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 7630, CorePercent: 31}}, a.gets(asks("r", gpu, 1, "memory", "8000000000", "cores", "30500m")), "rounded up")
		a.getsNothing(asks("r", gpu, 1, "memory", "1Gi", "cores", "40"))
		a.getsNothing(asks("r", gpu, 1, "memory", "120Gi"))
		a.getsNothing(asks("r", gpu, 1, "memory", "1Gi", "cores", "101"))
		a.getsNothing(asks("r", gpu, 1, "memory", "1Gi", "slots", "2"))
		a.getsNothing(asks("r", gpu, 1, "bandwidth", "1"))
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 1}}, a.gets(asks("r", gpu, 1, "memory", "1")))
		a.getsNothing(asks("r", gpu, 1, "memory", "1")) // no slot
	})
	t.Run("nothing requested is the whole GPU", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0), gpuDevice(1))
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 143771}}, a.gets(asks("r", gpu, 1)))
		require.Equal(t, []grant.Share{{UUID: second, MemoryMiB: 1 << 10}}, a.gets(asks("r", gpu, 1, "memory", "1Gi")))
		a.getsNothing(asks("r", gpu, 1))
	})
	t.Run("two GPUs", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0), gpuDevice(1))
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 1 << 10, CorePercent: 10}, {UUID: second, MemoryMiB: 1 << 10, CorePercent: 10}},
			a.gets(asks("r", gpu, 2, "memory", "1Gi", "cores", "10")))
		a.getsNothing(asks("r", gpu, 3, "memory", "1Gi"))
	})
	t.Run("two requests", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0), gpuDevice(1))
		spec := resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{asks("a", gpu, 1, "memory", "1Gi"), asks("b", gpu, 1, "memory", "2Gi")}}
		got, ok := a.allocate(spec)
		require.True(t, ok)
		require.Equal(t, []grant.Share{{UUID: first, MemoryMiB: 3 << 10}}, got.Shares(), "on one GPU")
		spec.Constraints = []resourcev1.DeviceConstraint{{DistinctAttribute: new(resourcev1.FullyQualifiedName("gpu.gpuslice.io/uuid"))}}
		got, ok = a.allocate(spec)
		require.True(t, ok)
		require.Len(t, got.Shares(), 2)
	})
	t.Run("a prioritised list", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0))
		sub := func(name, memory string) resourcev1.DeviceSubRequest {
			return resourcev1.DeviceSubRequest{
				Name: name, DeviceClassName: gpu, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}},
			}
		}
		got, ok := a.allocate(resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{sub("large", "200Gi"), sub("small", "2Gi")}}}})
		require.True(t, ok)
		require.Equal(t, map[string][]grant.Share{"r": {{UUID: first, MemoryMiB: 2 << 10}}}, got.Requests)
	})
	t.Run("taints", func(t *testing.T) {
		ill, cordoned := gpuDevice(0), gpuDevice(1)
		ill.Problem, cordoned.Cordoned = "XID 79", true
		a := newAllocating(t, ill, cordoned)
		a.getsNothing(asks("r", gpu, 1, "memory", "1Gi"))
		a.node.Devices[1].Cordoned = false
		require.Equal(t, second, a.gets(asks("r", gpu, 1, "memory", "1Gi"))[0].UUID)
		a.node.NotConnected = true
		a.getsNothing(asks("r", gpu, 1, "memory", "1Gi"))
	})
	t.Run("MIG devices are whole", func(t *testing.T) {
		const uuid = "MIG-11111111-0000-4000-8000-000000000001"
		a := newAllocating(t, gpuDevice(0), devices.Device{Capacity: grant.GPU{UUID: uuid, MemoryMiB: 16384, CorePercent: 100, Replicas: 1}, GPU: gpuDevice(1).GPU, Profile: "1g.18gb"})
		require.Equal(t, []grant.Share{{UUID: uuid, MemoryMiB: 16384, CorePercent: 100}}, a.gets(asks("r", mig, 1)))
		a.getsNothing(asks("r", mig, 1))
		require.Equal(t, first, a.gets(asks("r", gpu, 1, "memory", "1Gi"))[0].UUID)
	})
	t.Run("MIG devices on request", func(t *testing.T) {
		cut := gpuDevice(0)
		cut.GPU.MIGEnabled = true
		for _, p := range []struct {
			id, slices, size, most int
			name                   string
			starts                 []int
		}{
			{19, 1, 1, 7, "1g.18gb", []int{0, 1, 2, 3, 4, 5, 6}}, {20, 1, 1, 1, "1g.18gb+me", []int{0, 1, 2, 3, 4, 5, 6}}, {14, 2, 2, 3, "2g.35gb", []int{0, 2, 4}},
			{9, 3, 4, 2, "3g.71gb", []int{0, 4}}, {5, 4, 4, 1, "4g.71gb", []int{0}}, {0, 7, 8, 1, "7g.141gb", []int{0}},
		} {
			kind := hardware.MIGProfile{ID: p.id, Name: p.name, MemoryMiB: int64(p.size) * 16384, Slices: p.slices, Most: p.most}
			for _, start := range p.starts {
				kind.Places = append(kind.Places, hardware.Place{Start: start, Size: p.size})
			}
			cut.GPU.Profiles = append(cut.GPU.Profiles, kind)
		}
		node := func(foreign ...hardware.GPUInstance) *allocating {
			a := newAllocating(t, gpuDevice(1))
			cut.GPU.Instances = foreign
			a.node.Places = devices.PlacesOf(cut, func(hardware.GPUInstance) bool { return false })
			return a
		}
		of := func(profile string) resourcev1.DeviceRequest {
			r := asks("r", mig, 1)
			r.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf(`device.attributes["gpu.gpuslice.io"].profile == %q`, profile)}}}
			return r
		}
		has := func(a *allocating, profile string) string { return a.gets(of(profile))[0].UUID }
		a := node()
		require.Equal(t, madeUUID(19, 6), has(a, "1g.18gb"))
		require.Equal(t, madeUUID(14, 4), has(a, "2g.35gb"))
		require.Equal(t, madeUUID(5, 0), has(a, "4g.71gb"))
		for _, none := range []string{"1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb", "1g.18gb+me"} {
			a.getsNothing(of(none))
		}
		require.Equal(t, second, a.gets(asks("r", gpu, 1, "memory", "1Gi"))[0].UUID, "the other GPU is shared")
		a = node()
		require.Equal(t, madeUUID(9, 4), has(a, "3g.71gb"))
		require.Equal(t, madeUUID(20, 3), has(a, "1g.18gb+me"))
		a.getsNothing(of("1g.18gb+me"))
		a.getsNothing(of("4g.71gb"))
		for start := 2; start >= 0; start-- {
			require.Equal(t, madeUUID(19, start), has(a, "1g.18gb"))
		}
		a.getsNothing(of("1g.18gb"))
		a = node()
		require.Equal(t, madeUUID(0, 0), has(a, "7g.141gb"))
		a.getsNothing(of("1g.18gb"))
		a = node(hardware.GPUInstance{Profile: 20, Place: hardware.Place{Start: 6, Size: 1}})
		a.getsNothing(of("1g.18gb+me"))
		a.getsNothing(of("7g.141gb"))
		require.Equal(t, madeUUID(19, 5), has(a, "1g.18gb"))
		for i := range a.node.Places {
			a.node.Places[i].Occupied = true
		}
		a.getsNothing(of("1g.18gb"))
	})
	t.Run("selectors", func(t *testing.T) {
		a := newAllocating(t, gpuDevice(0), gpuDevice(1))
		r := asks("r", gpu, 1, "memory", "1Gi")
		for _, expression := range []string{
			`device.attributes["gpu.gpuslice.io"].productName == "NVIDIA H200"`,
			`device.attributes["gpu.gpuslice.io"].cudaDriverVersion.isGreaterThan(semver("12.4.0"))`,
			`device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("80Gi")) >= 0`,
			`device.attributes["gpu.gpuslice.io"].numaNode == 1`,
		} {
			r.Exactly.Selectors = append(r.Exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}})
		}
		require.Equal(t, second, a.gets(r)[0].UUID)
	})
}
