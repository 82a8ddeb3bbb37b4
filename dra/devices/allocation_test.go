package devices_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/grant"
)

type result = resourceapi.DeviceRequestAllocationResult

type capacity = map[resourceapi.QualifiedName]resource.Quantity

// consumed makes capacities of pairs of name and amount.
func consumed(pairs ...string) capacity {
	c := capacity{}
	for i := 0; i < len(pairs); i += 2 {
		c[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return c
}

// share is a share of a GPU as kube-scheduler allocates it.
func share(request string, gpu int, memory, cores string) result {
	return result{
		Request: request, Driver: "gpu.gpuslice.io", Pool: "node-1/h200", Device: h200(gpu).Name(), ShareID: new(types.UID("s")),
		ConsumedCapacity: consumed("memory", memory, "cores", cores, "slots", "1"),
	}
}

func claim(results ...result) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}},
	}
}

func change(r result, f func(*result)) result { f(&r); return r }

func TestAllocation(t *testing.T) {
	n := node(h200(0), h200(1))
	n.Devices = append(n.Devices, mixed().Devices[2])
	a := share("gpu", 0, "30Gi", "30")
	whole := result{Request: "gpu", Driver: "gpu.gpuslice.io", Pool: "node-1/h200", Device: n.Devices[2].Name()}
	foreign := result{Request: "nic", Driver: "nic.example.com", Pool: "p", Device: h200(0).Name()}
	config := func(driver string) *resourceapi.ResourceClaim {
		c := claim(a)
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver}}}}
		return c
	}
	type shares = map[string][]grant.Share
	for _, test := range []struct {
		description string
		claim       *resourceapi.ResourceClaim
		want        shares
		kind        error
		says        string
	}{
		{description: "one", claim: claim(a), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 30720, CorePercent: 30}}}},
		{description: "the whole GPU", claim: claim(share("gpu", 0, "143771Mi", "0")), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 143771}}}},
		{description: "in bytes", claim: claim(share("gpu", 0, "1048576", "100")), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 1, CorePercent: 100}}}},
		{description: "two GPUs of a request, in their order", claim: claim(share("gpu", 1, "1Gi", "1"), share("gpu", 0, "1Gi", "1")),
			want: shares{"gpu": {{UUID: uuid(1), MemoryMiB: 1024, CorePercent: 1}, {UUID: uuid(0), MemoryMiB: 1024, CorePercent: 1}}}},
		{description: "two requests on one GPU", claim: claim(a, share("b", 0, "1Gi", "20")),
			want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 30720, CorePercent: 30}}, "b": {{UUID: uuid(0), MemoryMiB: 1024, CorePercent: 20}}}},
		{description: "two of a request on one GPU", claim: claim(a, a), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 61440, CorePercent: 60}}}},
		{description: "a prioritised list", claim: claim(share("gpu/large", 0, "1Gi", "1")), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 1024, CorePercent: 1}}}},
		{description: "beside another driver's", claim: claim(foreign, a), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 30720, CorePercent: 30}}}},
		{description: "another driver's parameters", claim: config("nic.example.com"), want: shares{"gpu": {{UUID: uuid(0), MemoryMiB: 30720, CorePercent: 30}}}},
		{description: "a MIG device", claim: claim(whole), want: shares{"gpu": {{UUID: mig, MemoryMiB: 16384, CorePercent: 100}}}},

		{description: "not allocated", claim: &resourceapi.ResourceClaim{}, kind: grant.ErrMalformed, says: "not allocated"},
		{description: "nothing", claim: claim(), kind: grant.ErrMalformed, says: "no device of"},
		{description: "only another driver's", claim: claim(foreign), kind: grant.ErrMalformed, says: "no device of"},
		{description: "parameters", claim: config("gpu.gpuslice.io"), kind: grant.ErrMalformed, says: "parameters"},
		{description: "an unknown device", claim: claim(share("gpu", 5, "1Gi", "1")), kind: grant.ErrUnknownGPU, says: "no such device"},
		{description: "another node's pool", claim: claim(change(a, func(r *result) { r.Pool = "node-2/h200" })), kind: grant.ErrUnknownGPU, says: "no such device"},
		{description: "admin access", claim: claim(change(a, func(r *result) { r.AdminAccess = new(true) })), kind: grant.ErrMalformed, says: "adminAccess"},
		{description: "no capacities", claim: claim(change(a, func(r *result) { r.ConsumedCapacity = nil })), kind: grant.ErrMalformed, says: "without capacities"},
		{description: "no share ID", claim: claim(change(a, func(r *result) { r.ShareID = nil })), kind: grant.ErrMalformed, says: "without capacities"},
		{description: "a share of a MIG device", claim: claim(change(whole, func(r *result) { r.ConsumedCapacity = consumed("memory", "1Gi") })), kind: grant.ErrMalformed, says: "MIG device"},
		{description: "a GPU and a MIG device", claim: claim(a, whole), kind: grant.ErrMalformed, says: "can't be in one container"},
		{description: "too much of both together", claim: claim(share("a", 0, "100Gi", "1"), share("b", 0, "100Gi", "1")), kind: grant.ErrOverbooked, says: "memory"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := n.Allocation(test.claim)
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				require.ErrorContains(t, err, test.says)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got.Requests)
			require.NoError(t, grant.ValidateShares(got.Shares()))
			again, err := n.Allocation(test.claim.DeepCopy())
			require.NoError(t, err)
			require.Equal(t, got, again)
		})
	}
}

func TestAmountsOfAnAllocation(t *testing.T) {
	n := node(h200(0))
	for description, c := range map[string]capacity{
		"a part of a MiB":      consumed("memory", "1048577", "cores", "0", "slots", "1"),
		"a part of a byte":     consumed("memory", "100m", "cores", "0", "slots", "1"),
		"no memory":            consumed("memory", "0", "cores", "0", "slots", "1"),
		"less than none":       consumed("memory", "-1Mi", "cores", "0", "slots", "1"),
		"more than the GPU":    consumed("memory", "143772Mi", "cores", "0", "slots", "1"),
		"more than an integer": consumed("memory", "99999999999999999999", "cores", "0", "slots", "1"),
		"a part of a percent":  consumed("memory", "1Gi", "cores", "30500m", "slots", "1"),
		"more than 100 %":      consumed("memory", "1Gi", "cores", "101", "slots", "1"),
		"less than 0 %":        consumed("memory", "1Gi", "cores", "-1", "slots", "1"),
		"two slots":            consumed("memory", "1Gi", "cores", "0", "slots", "2"),
		"no slot":              consumed("memory", "1Gi", "cores", "0", "slots", "0"),
		"memory is missing":    consumed("cores", "0", "slots", "1"),
		"cores are missing":    consumed("memory", "1Gi", "slots", "1"),
		"slots are missing":    consumed("memory", "1Gi", "cores", "0"),
		"another capacity":     consumed("memory", "1Gi", "cores", "0", "slots", "1", "bandwidth", "1"),
		"another domain's":     consumed("example.com/memory", "1Gi", "cores", "0", "slots", "1"),
	} {
		t.Run(description, func(t *testing.T) {
			r := share("gpu", 0, "1Gi", "1")
			r.ConsumedCapacity = c
			got, err := n.Allocation(claim(r))
			require.Error(t, err)
			require.ErrorContains(t, err, `ResourceClaim ns/c: request "gpu"`)
			require.Empty(t, got)
		})
	}
	// What the node offers can change after the allocation.
	n.Devices[0].Capacity.MemoryMiB = 1000
	_, err := n.Allocation(claim(share("gpu", 0, "1Gi", "1")))
	require.ErrorIs(t, err, grant.ErrOverbooked)
}
