package resourceclaims

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const (
	gpuA = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"
	gpuB = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
)

var sizes = Sizes{GPUs: []int64{40960, 143771}}

type resources = map[string]int64

func container(name string, kind scheduler.Kind, wants resources) scheduler.Container {
	c := scheduler.Container{Name: name, Kind: kind, Resources: map[string]scheduler.Amount{}}
	for resource, n := range wants {
		c.Resources[resource] = scheduler.Amount{Value: n}
	}
	return c
}

func translate(t *testing.T, sizes Sizes, annotations map[string]string, containers ...scheduler.Container) (*Translation, error) {
	t.Helper()
	pod := &scheduler.Pod{Annotations: annotations, Containers: containers}
	options := request.DefaultOptions()
	r, err := request.FromPod(pod, options)
	require.NoError(t, err)
	require.NotNil(t, r)
	return Translate(pod, r, &options.Names, sizes)
}

const hardware8Gi = `
devices:
  requests:
  - name: gpu
    firstAvailable:
    - name: mig
      deviceClassName: mig.gpuslice.io
      allocationMode: ExactCount
      count: 1
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"]'}
      - cel: {expression: 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("8Gi")) >= 0'}
    - name: gpu
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: 1
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"]'}
      - cel: {expression: 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("8Gi")) >= 0'}
      capacity: {requests: {cores: "100"}}
`

func whole8Gi(gpus string) string {
	return `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: ` + gpus + `
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"]'}
      - cel: {expression: 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("8Gi")) >= 0'}
      capacity: {requests: {cores: "100"}}
`
}

func TestTranslate(t *testing.T) {
	share := resources{api.ResourceGPU: 2, api.ResourceMemory: 30720, api.ResourceCores: 30}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		wants       resources
		spec        string
	}{
		{"a share", nil, share, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: 2
      capacity: {requests: {memory: 30Gi, cores: "30"}}
`},
		{"a whole GPU", nil, resources{api.ResourceGPU: 1}, `
devices:
  requests:
  - name: gpu
    exactly: {deviceClassName: gpu.gpuslice.io, allocationMode: ExactCount, count: 1, capacity: {requests: {cores: "100"}}}
`},
		{"no compute share", nil, resources{api.ResourceGPU: 1, api.ResourceMemory: 1}, `
devices:
  requests:
  - name: gpu
    exactly: {deviceClassName: gpu.gpuslice.io, allocationMode: ExactCount, count: 1, capacity: {requests: {memory: 1Mi}}}
`},
		{"the driver's isolation", map[string]string{api.AnnotationIsolation: "driver"}, resources{api.ResourceGPU: 1, api.ResourceMemory: 1}, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: 1
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"] && device.attributes["gpu.gpuslice.io"].isolation == "driver"'}
      capacity: {requests: {memory: 1Mi}}
`},
		{"hardware isolation", map[string]string{api.AnnotationIsolation: "hardware"}, resources{api.ResourceGPU: 1, api.ResourceMemory: 8192}, hardware8Gi},
		{"HAMi's mode mig", map[string]string{api.AnnotationMode: "mig", api.AnnotationIsolation: "limiter"}, resources{api.ResourceGPU: 1, api.ResourceMemory: 8192}, hardware8Gi},
		{"hardware isolation, with a compute share", map[string]string{api.AnnotationIsolation: "hardware"},
			resources{api.ResourceGPU: 1, api.ResourceMemory: 8192, api.ResourceCores: 30}, whole8Gi("1")},
		{"hardware isolation, several GPUs", map[string]string{api.AnnotationIsolation: "hardware"}, resources{api.ResourceGPU: 2, api.ResourceMemory: 8192}, whole8Gi("2")},
		{"hardware isolation, a part of the memory", map[string]string{api.AnnotationIsolation: "hardware"}, resources{api.ResourceGPU: 1, api.ResourceMemoryPercentage: 50}, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: 1
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"]'}
      capacity: {requests: {cores: "100"}}
`},
		{"a limiter that is checked", map[string]string{api.AnnotationIsolation: "limiter"}, resources{api.ResourceGPU: 1, api.ResourceMemory: 1}, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      allocationMode: ExactCount
      count: 1
      selectors:
      - cel: {expression: '"isolation" in device.attributes["gpu.gpuslice.io"]'}
      capacity: {requests: {memory: 1Mi}}
`},
		{"gpu-manager's", nil, resources{api.ResourceVcudaCore: 20, api.ResourceVcudaMemory: 4}, `
devices:
  requests:
  - name: gpu
    exactly: {deviceClassName: gpu.gpuslice.io, allocationMode: ExactCount, count: 1, capacity: {requests: {memory: 1Gi, cores: "20"}}}
`},
		{"a part of the memory", nil, resources{api.ResourceGPU: 1, api.ResourceMemoryPercentage: 50, api.ResourceCores: 10}, `
devices:
  requests:
  - name: gpu
    firstAvailable:
    - name: mib-40960
      deviceClassName: gpu.gpuslice.io
      selectors: [{cel: {expression: 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("40Gi")) == 0'}}]
      allocationMode: ExactCount
      count: 1
      capacity: {requests: {memory: 20Gi, cores: "10"}}
    - name: mib-143771
      deviceClassName: gpu.gpuslice.io
      selectors: [{cel: {expression: 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("143771Mi")) == 0'}}]
      allocationMode: ExactCount
      count: 1
      capacity: {requests: {memory: 71885Mi, cores: "10"}}
`},
		{"rules", map[string]string{
			api.AnnotationUseTypes: "H200,a100", api.AnnotationAvoidTypes: "T4", api.AnnotationUseUUIDs: gpuA, api.AnnotationAvoidUUIDs: gpuB,
			api.AnnotationNUMABind: "true", api.AnnotationMode: "mig,hami-core",
		}, share, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.gpuslice.io
      selectors:
      - cel: {expression: '"productName" in device.attributes["gpu.gpuslice.io"] && ["a100", "h200"].exists(part, device.attributes["gpu.gpuslice.io"].productName.lowerAscii().contains(part))'}
      - cel: {expression: '!("productName" in device.attributes["gpu.gpuslice.io"] && ["t4"].exists(part, device.attributes["gpu.gpuslice.io"].productName.lowerAscii().contains(part)))'}
      - cel: {expression: 'device.attributes["gpu.gpuslice.io"].uuid in ["` + gpuA + `"]'}
      - cel: {expression: '!(device.attributes["gpu.gpuslice.io"].uuid in ["` + gpuB + `"])'}
      allocationMode: ExactCount
      count: 2
      capacity: {requests: {memory: 30Gi, cores: "30"}}
  constraints: [{requests: [gpu], matchAttribute: gpu.gpuslice.io/numaNode}]
`},
		{"one GPU is on one NUMA node", map[string]string{api.AnnotationNUMABind: "true"}, resources{api.ResourceMemory: 1}, `
devices:
  requests:
  - name: gpu
    exactly: {deviceClassName: gpu.gpuslice.io, allocationMode: ExactCount, count: 1, capacity: {requests: {memory: 1Mi}}}
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := translate(t, sizes, test.annotations, container("main", scheduler.App, test.wants))
			require.NoError(t, err)
			require.Empty(t, got.Warnings)
			require.Len(t, got.Claims, 1)
			require.Equal(t, []int{0}, got.Claims[0].Containers)
			data, err := yaml.Marshal(got.Claims[0].Spec)
			require.NoError(t, err)
			require.YAMLEq(t, test.spec, string(data))
		})
	}
}

// Containers that run at the same time have ResourceClaims of their own. An init container has that of a later container with
// the same request: its own would hold a GPU until the pod ends.
// Hardware isolation asks for the smallest MIG device that is enough, then a larger one, then any, then a GPU.
func TestSmallestMIGDevice(t *testing.T) {
	for _, test := range []struct {
		memory int64
		mig    []int64
		want   []string
	}{
		{8192, nil, []string{"mig", "gpu"}},
		{8192, []int64{4864, 9728, 19968, 40192}, []string{"mig-mib-9728", "mig-mib-19968", "mig-mib-40192", "mig", "gpu"}},
		{9728, []int64{9728}, []string{"mig-mib-9728", "mig", "gpu"}},
		{50000, []int64{4864, 40192}, []string{"mig", "gpu"}},
		{1, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, []string{"mig-mib-1", "mig-mib-2", "mig-mib-3", "mig-mib-4", "mig-mib-5", "mig-mib-6", "mig", "gpu"}},
	} {
		got, err := translate(t, Sizes{MIG: test.mig}, map[string]string{api.AnnotationMode: "mig"},
			container("main", scheduler.App, resources{api.ResourceGPU: 1, api.ResourceMemory: test.memory}))
		require.NoError(t, err)
		var names []string
		for _, sub := range got.Claims[0].Spec.Devices.Requests[0].FirstAvailable {
			names = append(names, sub.Name)
			last := sub.Selectors[len(sub.Selectors)-1].CEL.Expression
			if size, exact := strings.CutPrefix(sub.Name, "mig-mib-"); exact {
				n, err := strconv.ParseInt(size, 10, 64)
				require.NoError(t, err)
				require.Equal(t, ofSize(n).CEL.Expression, last)
			} else {
				require.Equal(t, atLeast(test.memory).CEL.Expression, last)
			}
			require.Len(t, sub.Selectors, 2, "and the attribute isolation")
			require.Equal(t, sub.Name == "gpu", sub.DeviceClassName == api.DeviceClassGPU)
		}
		require.Equal(t, test.want, names)
	}
}

func TestTranslateContainers(t *testing.T) {
	same, other := resources{api.ResourceGPU: 1, api.ResourceMemory: 1000}, resources{api.ResourceGPU: 1, api.ResourceMemory: 2000}
	got, err := translate(t, Sizes{}, nil,
		container("init-1", scheduler.Init, same), container("sidecar", scheduler.Sidecar, same), container("init-2", scheduler.Init, same),
		container("init-3", scheduler.Init, other), container("none", scheduler.Init, nil),
		container("a", scheduler.App, same), container("b", scheduler.App, same), container("none-b", scheduler.App, resources{api.ResourceGPU: 0}))
	require.NoError(t, err)
	var containers [][]int
	for _, c := range got.Claims {
		containers = append(containers, c.Containers)
	}
	require.Equal(t, [][]int{{0, 2, 5}, {1}, {3}, {6}}, containers)
}

func TestTranslateRefuses(t *testing.T) {
	share := resources{api.ResourceGPU: 1, api.ResourceMemory: 1000}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i))
	}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		wants       resources
		sizes       Sizes
		message     string
	}{
		{"another mode", map[string]string{api.AnnotationMode: "mig,mps"}, share, sizes, "nvidia.com/vgpu-mode: "},
		{"unused GPUs only", map[string]string{api.AnnotationGPUPolicy: "mutex,binpack"}, share, sizes, "hami.io/gpu-scheduler-policy: "},
		{"a group", map[string]string{api.AnnotationGroupTopology: "zone"}, share, sizes, "gpuslice.io/pod-group-topology: "},
		{"many UUIDs", map[string]string{api.AnnotationUseUUIDs: strings.Join(many, ",")}, share, sizes, "nvidia.com/use-gpuuuid: "},
		{"long types", map[string]string{api.AnnotationUseTypes: strings.Repeat("x", 20000)}, share, sizes, "nvidia.com/use-gputype: "},
		{"long excluded types", map[string]string{api.AnnotationAvoidTypes: strings.Repeat("x", 20000)}, share, sizes, "nvidia.com/nouse-gputype: "},
		{"percent, no GPUs", nil, resources{api.ResourceMemoryPercentage: 30}, Sizes{}, `container "main": nvidia.com/gpumem-percentage: 30: `},
		{"percent, many sizes", nil, resources{api.ResourceMemoryPercentage: 30}, Sizes{GPUs: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}}, "there are 9 sizes, more than the maximum of 8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := translate(t, test.sizes, test.annotations, container("main", scheduler.App, test.wants))
			require.ErrorContains(t, err, test.message)
			var invalid *request.Error
			require.ErrorAs(t, err, &invalid)
		})
	}
	got, err := translate(t, Sizes{}, map[string]string{api.AnnotationAvoidUUIDs: strings.Join(many, ",")}, container("main", scheduler.App, share))
	require.NoError(t, err)
	require.Len(t, got.Claims[0].Spec.Devices.Requests[0].Exactly.Selectors, 2, "excluded UUIDs can be in several selectors")
}

func TestTranslateWarns(t *testing.T) {
	got, err := translate(t, Sizes{}, map[string]string{api.AnnotationNodePolicy: "spread", api.AnnotationGPUPolicy: "binpack", api.AnnotationWeights: " "},
		container("main", scheduler.App, resources{api.ResourceGPU: 1}))
	require.NoError(t, err)
	require.Equal(t, []string{
		"annotation hami.io/node-scheduler-policy has no effect: the request becomes a ResourceClaim",
		"annotation hami.io/gpu-scheduler-policy has no effect: the request becomes a ResourceClaim",
	}, got.Warnings)
}

// What a tenant writes is text in an expression, and nothing else.
func TestLiterals(t *testing.T) {
	require.Equal(t, `["\") || true || (\"", "\\\"", "\u00e9\n\x00"]`, literals([]string{`") || true || ("`, `\"`, "é\n\x00"}))
	require.LessOrEqual(t, uuidsAtOnce*len(`"`+gpuA+`", `)+100, resourceapi.CELSelectorExpressionMaxLength)
}
