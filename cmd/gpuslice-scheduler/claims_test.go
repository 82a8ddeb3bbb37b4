package main

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// stock is the configuration of an unmodified kube-scheduler.
const stock = "testdata/stock.yaml"

// slicesOf are the ResourceSlices of the nodes and GPUs that nodes makes, and the chart's DeviceClass.
func slicesOf(n, gpus int) []runtime.Object {
	all := []runtime.Object{&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: api.DeviceClassGPU}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.gpuslice.io" && device.attributes["gpu.gpuslice.io"].type == "gpu"`,
		}}},
	}}}
	for i := range n {
		node := devices.Node{Name: fmt.Sprintf("n%03d", i), DriverVersion: "570.172.08", CUDAVersion: "12.8"}
		for g := range gpus {
			uuid := fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i*gpus+g)
			node.Devices = append(node.Devices, devices.Device{
				Capacity: grant.GPU{UUID: uuid, MemoryMiB: 80000, CorePercent: 100, Replicas: 10},
				GPU:      hardware.GPU{UUID: uuid, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 80000, NUMANode: g / 4},
			})
		}
		for name, pool := range node.Pools() {
			for k, s := range pool.Slices {
				all = append(all, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node.Name, k), ResourceVersion: "1"}, Spec: resourceapi.ResourceSliceSpec{
					Driver: api.DRADriver, NodeName: &node.Name, Devices: s.Devices, SharedCounters: s.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				}})
			}
		}
	}
	return all
}

func shareClaim(name string, memoryMiB, cores int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name), ResourceVersion: "1"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				api.DRACapacityMemory: *resource.NewQuantity(memoryMiB<<20, resource.BinarySI), api.DRACapacityCores: *resource.NewQuantity(cores, resource.DecimalSI),
			}},
		}}}}},
	}
}

// newVersion gives what is updated the next version, as an API server does: kube-scheduler ignores older ones.
func (c *cluster) newVersion() clienttesting.ReactionFunc {
	var version atomic.Int64
	version.Store(1)
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim).DeepCopy()
		claim.ResourceVersion = strconv.FormatInt(version.Add(1), 10)
		return true, claim, c.Tracker().Update(action.GetResource(), claim, claim.Namespace)
	}
}

// An unmodified kube-scheduler fills the GPUs of our ResourceSlices, and no GPU beyond what it has.
func TestStockSchedulerFillsGPUs(t *testing.T) {
	const n, gpus, more = 2, 2, 3
	objects := append(nodes(n, gpus, nil), slicesOf(n, gpus)...)
	var pods []*v1.Pod
	for i := range n*gpus*2 + more {
		pod := gpuPod(fmt.Sprint("p", i), 0, 0, 0)
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &pod.Name}}
		objects = append(objects, shareClaim(pod.Name, 40000, 50))
		pods = append(pods, pod)
	}
	c := startWith(t, configuration(t, stock), objects...)
	c.create(pods...)
	used := map[string]int{}
	require.Eventually(t, func() bool {
		list, err := c.ResourceV1().ResourceClaims("ns").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		clear(used)
		allocated := 0
		for _, claim := range list.Items {
			if claim.Status.Allocation != nil {
				used[claim.Status.Allocation.Devices.Results[0].Device]++
				allocated++
			}
		}
		waiting := 0
		for _, pod := range pods {
			now, err := c.CoreV1().Pods("ns").Get(t.Context(), pod.Name, metav1.GetOptions{})
			require.NoError(t, err)
			if now.Spec.NodeName == "" && len(now.Status.Conditions) > 0 {
				waiting++
			}
		}
		return allocated == n*gpus*2 && waiting == more
	}, time.Minute, 20*time.Millisecond)
	require.Len(t, used, n*gpus)
	for gpu, shares := range used {
		require.Equal(t, 2, shares, gpu)
	}
}
