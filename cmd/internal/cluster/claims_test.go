package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func capacities(memory, cores, slots string) map[resourceapi.QualifiedName]resource.Quantity {
	return map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory), "cores": resource.MustParse(cores), "slots": resource.MustParse(slots)}
}

func offeredGPU(name string, taints ...string) resourceapi.Device {
	d := resourceapi.Device{
		Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: new("gpu")}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	defaults := capacities("80Gi", "0", "1")
	for name, value := range capacities("80Gi", "100", "10") {
		d.Capacity[name] = resourceapi.DeviceCapacity{Value: value, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: new(defaults[name])}}
	}
	for _, t := range taints {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: t})
	}
	return d
}

func claimOf(name, class string, requests map[resourceapi.QualifiedName]resource.Quantity) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, Capacity: &resourceapi.CapacityRequirements{Requests: requests},
		}}}}},
	}
}

// claimants are a pod with these ResourceClaims, GPUs and a ResourceClaim that has a part of the first one.
func claimants(claims ...*resourceapi.ResourceClaim) []runtime.Object {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	has := claimOf("has", "gpu.gpuslice.io", nil)
	has.Status = resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpu.gpuslice.io", Pool: "n1/h100", Device: "gpu-a", ShareID: new(types.UID("s")), ConsumedCapacity: capacities("50Gi", "40", "1"),
		}}}},
		Devices: []resourceapi.AllocatedDeviceStatus{{
			Driver: "gpu.gpuslice.io", Pool: "n1/h100", Device: "gpu-a", ShareID: new("s"),
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Message: "no room in the ledger"}},
		}},
	}
	objects := []runtime.Object{
		pod, has,
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.gpuslice.io"}}, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "mig.gpuslice.io"}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.gpuslice.io", Pool: resourceapi.ResourcePool{Name: "n1/h100", Generation: 2},
			Devices: []resourceapi.Device{offeredGPU("gpu-a"), offeredGPU("gpu-b", "gpu.gpuslice.io/unhealthy")},
		}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.gpuslice.io", Pool: resourceapi.ResourcePool{Name: "n1/h100", Generation: 1}, Devices: []resourceapi.Device{offeredGPU("gpu-old")},
		}},
	}
	for _, c := range append(claims, has) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: c.Name, ResourceClaimName: new(c.Name)})
		if c != has {
			objects = append(objects, c)
		}
	}
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: "of-template", ResourceClaimTemplateName: new("t")}, v1.PodResourceClaim{Name: "x", ResourceClaimName: new("missing")})
	return objects
}

// Without a scheduler of gpuslice, what pods with ResourceClaims wait for is explained.
func TestExplainResourceClaims(t *testing.T) {
	selecting := claimOf("selects", "gpu.gpuslice.io", capacities("1Gi", "0", "1"))
	selecting.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{}}
	c, _ := of(nil, claimants(
		claimOf("fits", "gpu.gpuslice.io", capacities("30Gi", "60", "1")), claimOf("full", "gpu.gpuslice.io", capacities("31Gi", "61", "1")),
		claimOf("large", "gpu.gpuslice.io", capacities("81Gi", "0", "1")), claimOf("whole", "gpu.gpuslice.io", nil), selecting,
		claimOf("mig", "mig.gpuslice.io", nil), claimOf("other", "other", nil), claimOf("typo", "gpus", nil),
	)...)
	x, err := c.Explain(t.Context(), "ns", "p")
	require.NoError(t, err)
	assert.Equal(t, "it has ResourceClaims, which kube-scheduler allocates", x.Text)
	byName := map[string]ResourceClaim{}
	for _, claim := range x.ResourceClaims {
		byName[claim.Name] = claim
	}
	for name, want := range map[string]struct{ text, gpuA string }{
		"fits":    {"1 of 2 devices have room: something else", "it has room"},
		"full":    {"none of 2 devices has room", "memory: 31Gi requested, 30Gi of 80Gi free; cores: 61 requested, 60 of 100 free"},
		"large":   {"none of 2 devices has room", "memory: the share is too large, 81Gi of 80Gi"},
		"whole":   {"none of 2 devices has room", "memory: 80Gi requested, 30Gi of 80Gi free"},
		"selects": {"1 of 2 devices have room: the selectors", "it has room"},
		"mig":     {"no node offers a device of DeviceClass mig.gpuslice.io", ""},
		"other":   {"is not one of gpuslice's chart", ""},
		"typo":    {"there is no DeviceClass gpus", ""},
	} {
		require.Len(t, byName[name].Requests, 1, name)
		r := byName[name].Requests[0]
		assert.Contains(t, r.Text, want.text, name)
		if want.gpuA == "" {
			assert.Empty(t, r.Devices, name)
			continue
		}
		require.Len(t, r.Devices, 2, name)
		assert.Equal(t, want.gpuA, r.Devices[0].Text, name)
		assert.Contains(t, r.Devices[1].Text, "gpu.gpuslice.io/unhealthy", name)
	}
	assert.Equal(t, []AllocatedDevice{{Request: "gpu", Pool: "n1/h100", Device: "gpu-a", Ready: "False", Text: "no room in the ledger"}}, byName["has"].Allocated)
	assert.Contains(t, byName["of-template"].Text, "template")
	assert.Contains(t, byName["missing"].Text, "does not exist")
}
