package examples

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/resource/validation"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/resourceclaims"
)

// mixed are two GPUs of two models each, on two NUMA nodes, and one of which the model is not known.
func mixed() []devices.Device {
	var list []devices.Device
	for i, model := range []struct {
		name string
		mib  int64
	}{{"NVIDIA A100-SXM4-40GB", 40960}, {"NVIDIA A100-SXM4-40GB", 40960}, {"NVIDIA H200", 143771}, {"NVIDIA H200", 143771}} {
		uuid := fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i)
		list = append(list, devices.Device{
			Capacity: grant.GPU{UUID: uuid, MemoryMiB: model.mib, CorePercent: 100, Replicas: 10},
			GPU:      hardware.GPU{UUID: uuid, Model: model.name, NUMANode: i % 2},
		})
	}
	uuid := "GPU-00000000-0000-4000-8000-000000000004"
	return append(list, devices.Device{Capacity: grant.GPU{UUID: uuid, MemoryMiB: 40960, CorePercent: 100, Replicas: 10}, GPU: hardware.GPU{UUID: uuid, NUMANode: 2}})
}

// translated is a pod's request as the webhook writes it. Kubernetes accepts it, and has no defaults to add.
func translated(t *testing.T, annotations map[string]string, containers ...scheduler.Container) (*request.Request, []resourceclaims.Claim) {
	t.Helper()
	pod := &scheduler.Pod{Annotations: annotations, Containers: containers}
	options := request.DefaultOptions()
	r, err := request.FromPod(pod, options)
	require.NoError(t, err)
	got, err := resourceclaims.Translate(pod, r, &options.Names, resourceclaims.Sizes{GPUs: []int64{40960, 143771}, MIG: []int64{16384, 34816}})
	require.NoError(t, err)
	for _, c := range got.Claims {
		template := resourceclaims.Template(c.Spec, 1)
		template.Namespace = "ns"
		defaulted := template.DeepCopy()
		legacyscheme.Scheme.Default(defaulted)
		require.Equal(t, template, defaulted)
		var checked internal.ResourceClaimTemplate
		require.NoError(t, legacyscheme.Scheme.Convert(template, &checked, nil))
		require.Empty(t, validation.ValidateResourceClaimTemplate(&checked))
	}
	return r, got.Claims
}

func requesting(amounts map[string]int64) scheduler.Container {
	c := scheduler.Container{Name: "main", Resources: map[string]scheduler.Amount{}}
	for name, n := range amounts {
		c.Resources[name] = scheduler.Amount{Value: n}
	}
	return c
}

// kube-scheduler gives a translated request the limits that gpuslice's scheduler gives to the original one.
func TestTranslatedRequests(t *testing.T) {
	uuids := make([]string, 5)
	for i := range uuids {
		uuids[i] = mixed()[i].Capacity.UUID
	}
	share := map[string]int64{api.ResourceMemory: 20000, api.ResourceCores: 30}
	two := map[string]int64{api.ResourceGPU: 2, api.ResourceMemory: 20000}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		amounts     map[string]int64
		gpus        []int // none: it is not placed
	}{
		{"a share", nil, share, []int{0}},
		{"more than the first model has", nil, map[string]int64{api.ResourceMemory: 50000}, []int{2}},
		{"more than any GPU has", nil, map[string]int64{api.ResourceMemory: 150000}, nil},
		{"a whole GPU", nil, map[string]int64{api.ResourceGPU: 1}, []int{0}},
		{"a whole GPU of a model", map[string]string{api.AnnotationUseTypes: "H200"}, map[string]int64{api.ResourceGPU: 1}, []int{2}},
		{"percent", nil, map[string]int64{api.ResourceMemoryPercentage: 33}, []int{0}},
		{"percent of a model", map[string]string{api.AnnotationUseTypes: "h200"}, map[string]int64{api.ResourceMemoryPercentage: 33}, []int{2}},
		{"gpu-manager's", nil, map[string]int64{api.ResourceVcudaCore: 20, api.ResourceVcudaMemory: 40}, []int{0}},
		{"two models", map[string]string{api.AnnotationUseTypes: "V100,h200"}, share, []int{2}},
		{"not a model", map[string]string{api.AnnotationAvoidTypes: "a100"}, share, []int{4}},
		{"no such model", map[string]string{api.AnnotationUseTypes: "B200"}, share, nil},
		{"a UUID", map[string]string{api.AnnotationUseUUIDs: uuids[3]}, share, []int{3}},
		{"not a UUID", map[string]string{api.AnnotationAvoidUUIDs: uuids[0] + "," + uuids[1] + "," + uuids[4]}, share, []int{2}},
		{"two GPUs", nil, two, []int{0, 1}},
		{"two GPUs on one NUMA node", map[string]string{api.AnnotationNUMABind: "true"}, two, []int{0, 2}},
		{"no two GPUs on one NUMA node", map[string]string{api.AnnotationNUMABind: "true", api.AnnotationUseTypes: "h200"}, two, nil},
		{"a GPU without a model", map[string]string{api.AnnotationAvoidTypes: "a100,h200"}, share, []int{4}},
		{"CEL in a text", map[string]string{api.AnnotationUseTypes: `")) || true || ("`}, share, nil},
		{"CEL in a text that ends a list", map[string]string{api.AnnotationUseTypes: `x"].exists(part, true))||["\`}, share, nil},
		{"CEL in an excluded text", map[string]string{api.AnnotationAvoidTypes: `") && false || ("`}, share, []int{0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newAllocating(t, mixed()...)
			r, claims := translated(t, test.annotations, requesting(test.amounts))
			require.Len(t, claims, 1)
			got, ok := a.allocate(claims[0].Spec.Devices)
			require.Equal(t, test.gpus != nil, ok)
			var want []grant.Share
			for _, i := range test.gpus {
				gpu := a.node.Devices[i]
				require.True(t, r.Rules.TypeFits(gpu.GPU.Model) && r.Rules.UUIDFits(gpu.GPU.UUID), "gpuslice's scheduler would give this GPU")
				use := r.Containers[0].Use(gpu.Capacity.MemoryMiB)
				want = append(want, grant.Share{UUID: gpu.GPU.UUID, MemoryMiB: use.MemoryMiB, CorePercent: use.Cores})
			}
			require.ElementsMatch(t, want, got.Shares())
		})
	}
}

// The longest rules that are translated are within Kubernetes' limits of the length and the cost of expressions.
func TestLongestTranslatedRules(t *testing.T) {
	var uuids, types []string
	for i := range 1024 {
		uuids = append(uuids, fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i))
	}
	for i := range 64 {
		types = append(types, fmt.Sprintf("%0140d", i))
	}
	_, claims := translated(t, map[string]string{
		api.AnnotationUseUUIDs: strings.Join(uuids[:230], ","), api.AnnotationAvoidUUIDs: strings.Join(uuids, ","),
		api.AnnotationUseTypes: strings.Join(types, ","), api.AnnotationAvoidTypes: strings.Join(types, ","),
	}, requesting(map[string]int64{api.ResourceGPU: 16, api.ResourceMemoryPercentage: 33}))
	sub := claims[0].Spec.Devices.Requests[0].FirstAvailable
	require.Len(t, sub, 2)
	require.Len(t, sub[0].Selectors, 10)
	require.True(t, slices.ContainsFunc(sub[0].Selectors, func(s resourcev1.DeviceSelector) bool { return len(s.CEL.Expression) > 9000 }))
}

// Isolation is what kube-scheduler allocates too: the driver's only where it is, and hardware as a MIG device or a whole GPU.
func TestTranslatedIsolation(t *testing.T) {
	const large, mig = "MIG-00000000-0000-4000-8000-000000000002", "MIG-00000000-0000-4000-8000-000000000001"
	cut := hardware.GPU{UUID: "GPU-00000000-0000-4000-8000-000000000009", Model: "NVIDIA H200", NUMANode: hardware.NUMAUnknown, MIGEnabled: true}
	list := mixed()
	for _, d := range []devices.Device{
		{Capacity: grant.GPU{UUID: large, MemoryMiB: 34816}, Profile: "2g.35gb"}, {Capacity: grant.GPU{UUID: mig, MemoryMiB: 16384}, Profile: "1g.18gb"},
	} {
		d.Capacity.CorePercent, d.Capacity.Replicas, d.Capacity.Parent, d.GPU = 100, 1, cut.UUID, cut
		list = append(list, d)
	}
	list[0].Capacity.MemoryMiB /= 2
	for i := range list {
		list[i].GPU.MemoryMiB = list[i].Capacity.MemoryMiB
	}
	list[1].GPU.MemoryMiB /= 2 // oversubscribed
	gpus := map[string]grant.GPU{}
	for _, d := range list {
		gpus[d.Capacity.UUID] = d.Capacity
	}
	memory := func(mib int64) map[string]int64 { return map[string]int64{api.ResourceMemory: mib} }
	for _, test := range []struct {
		name, isolation, enforcement string
		amounts                      map[string]int64
		want                         []string // UUIDs, one request after another; "": it is not placed
	}{
		{"driver", "driver", "native", memory(15000), []string{list[0].Capacity.UUID, list[4].Capacity.UUID}},
		{"no driver", "driver", "limiter", memory(15000), []string{""}},
		{"not asked", "limiter", "", memory(15000), []string{list[0].Capacity.UUID, list[1].Capacity.UUID}},
		{"the smallest MIG device, then a larger one, then whole GPUs", "hardware", "", memory(8000), []string{mig, large, list[0].Capacity.UUID, list[1].Capacity.UUID, list[4].Capacity.UUID}},
		{"more than the smallest MIG device has", "hardware", "", memory(17000), []string{large, list[0].Capacity.UUID}},
		{"more than a MIG device has", "hardware", "", memory(35000), []string{list[1].Capacity.UUID}},
		{"more than some GPUs have", "hardware", "", memory(50000), []string{list[2].Capacity.UUID, list[3].Capacity.UUID, ""}},
		{"a compute share", "hardware", "", map[string]int64{api.ResourceMemory: 8000, api.ResourceCores: 30}, []string{list[0].Capacity.UUID}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newAllocating(t, list...)
			a.node.MemoryEnforcement = test.enforcement
			for _, want := range test.want {
				_, claims := translated(t, map[string]string{api.AnnotationIsolation: test.isolation}, requesting(test.amounts))
				got, ok := a.allocate(claims[0].Spec.Devices)
				require.Equal(t, want != "", ok)
				if !ok {
					continue
				}
				require.Equal(t, want, got.Shares()[0].UUID)
				isolation, err := grant.ParseIsolation(test.isolation)
				require.NoError(t, err)
				limited := grant.IsolationLimiter
				if test.enforcement == "native" {
					limited = grant.IsolationDriver
				}
				require.NoError(t, isolation.Check(got.Shares(), gpus, limited), "as the node compares it")
			}
		})
	}
}
