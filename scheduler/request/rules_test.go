package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

const (
	gpuA = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"
	gpuB = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
)

func annotated(annotations map[string]string) *scheduler.Pod {
	p := pod(resources{gpu: 1})
	p.Annotations = annotations
	return p
}

func TestRules(t *testing.T) {
	for _, test := range []struct {
		description string
		annotations map[string]string
		want        Rules
	}{
		{"none", nil, Rules{}},
		{"others'", map[string]string{"example.com/a": "b"}, Rules{}},
		{"types", map[string]string{api.AnnotationUseTypes: "H200, a100,H200", api.AnnotationAvoidTypes: "Tesla T4"},
			Rules{UseTypes: []string{"a100", "h200"}, AvoidTypes: []string{"tesla t4"}}},
		{"blank is no rule", map[string]string{api.AnnotationUseTypes: " ", api.AnnotationAvoidTypes: "", api.AnnotationUseUUIDs: "", api.AnnotationMode: ""}, Rules{}},
		{"empty entries, which HAMi passes over", map[string]string{api.AnnotationUseTypes: "A100,", api.AnnotationAvoidTypes: "T4,,V100", api.AnnotationUseUUIDs: "," + gpuA, api.AnnotationMode: "mps,"},
			Rules{UseTypes: []string{"a100"}, AvoidTypes: []string{"t4", "v100"}, UseUUIDs: []string{gpuA}, Modes: []string{"mps"}}},
		{"only empty entries", map[string]string{api.AnnotationUseTypes: ",", api.AnnotationUseUUIDs: " , "}, Rules{}},
		{"gpus", map[string]string{api.AnnotationUseUUIDs: gpuB + ", " + gpuA, api.AnnotationAvoidUUIDs: gpuB},
			Rules{UseUUIDs: []string{gpuA, gpuB}, AvoidUUIDs: []string{gpuB}}},
		{"numa", map[string]string{api.AnnotationNUMABind: "true"}, Rules{NUMABind: true}},
		{"no numa", map[string]string{api.AnnotationNUMABind: "0"}, Rules{}},
		{"modes", map[string]string{api.AnnotationMode: "mps, hami-core"}, Rules{Modes: []string{"hami-core", "mps"}}},
		{"any isolation", map[string]string{api.AnnotationIsolation: "any"}, Rules{}},
		{"isolation", map[string]string{api.AnnotationIsolation: "driver"}, Rules{Isolation: grant.IsolationDriver}},
		{"HAMi's mode mig", map[string]string{api.AnnotationMode: "mig,"}, Rules{Isolation: grant.IsolationHardware}},
		{"HAMi's mode mig beside others", map[string]string{api.AnnotationMode: "hami-core,mig"}, Rules{Modes: []string{"hami-core", "mig"}}},
		{"the stronger of both", map[string]string{api.AnnotationMode: "mig", api.AnnotationIsolation: "any"}, Rules{Isolation: grant.IsolationHardware}},
		{"the stronger of both, which is ours", map[string]string{api.AnnotationMode: "hami-core", api.AnnotationIsolation: "hardware"},
			Rules{Modes: []string{"hami-core"}, Isolation: grant.IsolationHardware}},
		{"policies are choose's", map[string]string{api.AnnotationNodePolicy: " spread ", api.AnnotationGPUPolicy: "numa,binpack", api.AnnotationWeights: "slot=1,core=0,memory=0"},
			Rules{NodePolicy: "spread", GPUPolicy: "numa,binpack", Weights: "slot=1,core=0,memory=0"}},
		{"ceilings are the node's", map[string]string{"gpuslice.io/core-ceiling": "80", "tencent.com/vcuda-core-limit": "100"}, Rules{}},
	} {
		t.Run(test.description, func(t *testing.T) {
			r, err := FromPod(annotated(test.annotations), DefaultOptions())
			require.NoError(t, err)
			assert.Equal(t, test.want, r.Rules)
		})
	}
}

// Hardware isolation is a request for whole GPUs of at least the requested size.
func TestHardwareIsolation(t *testing.T) {
	for _, test := range []struct {
		resources resources
		want      Container
		least     int64 // on a GPU with 10 MiB
	}{
		{resources{gpu: 1}, Container{GPUs: 1, MemoryPercent: 100, Cores: 100, LeastCores: 100}, 10},
		{resources{gpu: 2, gpumem: 3000, cores: 30}, Container{GPUs: 2, MemoryPercent: 100, Cores: 100, LeastMiB: 3000, LeastCores: 30}, 3000},
		{resources{gpu: 1, gpumem: 7}, Container{GPUs: 1, MemoryPercent: 100, Cores: 100, LeastMiB: 7}, 10},
		{resources{percent: 25}, Container{GPUs: 1, MemoryPercent: 100, Cores: 100}, 10},
		{resources{vcore: 10, vmem: 1}, Container{GPUs: 1, MemoryPercent: 100, Cores: 100, LeastMiB: 256, LeastCores: 10}, 256},
	} {
		p := pod(test.resources)
		p.Containers = append(p.Containers, scheduler.Container{Name: "none"})
		p.Annotations = map[string]string{api.AnnotationIsolation: "hardware"}
		r, err := FromPod(p, DefaultOptions())
		require.NoError(t, err)
		assert.Equal(t, []Container{test.want, {}}, r.Containers)
		assert.Equal(t, test.least, r.Containers[0].Memory(10))
	}
}

func TestGroup(t *testing.T) {
	p := annotated(map[string]string{api.AnnotationGroupMin: "4"})
	p.Group = "ns/training"
	_, err := FromPod(p, DefaultOptions())
	require.NoError(t, err)
}

func TestRulesRefused(t *testing.T) {
	for _, test := range []struct {
		description, key, value, want string
	}{
		{"too many types", api.AnnotationUseTypes, strings.Repeat("a,", 64) + "a", "has 65 entries, at most 64 are allowed"},
		{"no GPU", api.AnnotationUseUUIDs, "GPU-1", `"GPU-1": must be a GPU's UUID`},
		{"a second spelling of a GPU", api.AnnotationAvoidUUIDs, strings.ToUpper(gpuA), "must be a GPU's UUID"},
		{"too many GPUs", api.AnnotationAvoidUUIDs, strings.Repeat(gpuA+",", 1024) + gpuB, "has 1025 entries, at most 1024 are allowed"},
		{"too long", api.AnnotationUseTypes, strings.Repeat("x", 1<<17), "may have at most 65536 bytes"},
		{"numa", api.AnnotationNUMABind, "yes", `nvidia.com/numa-bind: "yes": must be true or false`},
		{"no numa", api.AnnotationNUMABind, "", "must be true or false"},
		{"a mode", api.AnnotationMode, "time-slicing", `unknown mode "time-slicing": use hami-core, mig or mps`},
		{"a mode with something else", api.AnnotationMode, "mig,x", `unknown mode "x"`},
		{"an isolation", api.AnnotationIsolation, "Hardware", `gpuslice.io/isolation: "Hardware": must be hardware, driver, limiter or any`},
		{"an empty isolation", api.AnnotationIsolation, "", "must be hardware, driver, limiter or any"},
		{"two isolations", api.AnnotationIsolation, "driver,hardware", "must be hardware, driver, limiter or any"},
		{"a GPU policy", api.AnnotationGPUPolicy, "binpakc", `hami.io/gpu-scheduler-policy: "binpakc": GPU policy`},
		{"a node policy", api.AnnotationNodePolicy, "spread,x", `hami.io/node-scheduler-policy: "spread,x": node policy`},
		{"weights", api.AnnotationWeights, "slot=1", `hami.io/device-scoring-weights: "slot=1": weights`},
		{"a policy without end", api.AnnotationGPUPolicy, strings.Repeat("spread,", 40), "may have at most 256 bytes"},
		{"a group's size without a group", api.AnnotationGroupMin, "3", "the pod has no group: set the label scheduling.x-k8s.io/pod-group"},
		{"no size", api.AnnotationGroupMin, "0", "must be a number of pods from 1 to 10000"},
		{"a size without end", api.AnnotationGroupMin, "99999999999999999999", "must be a number of pods"},
		{"a ceiling", "gpuslice.io/core-ceiling", "101", "must be 1 to 100 percent of a GPU"},
		{"gpu-manager's ceiling", "tencent.com/vcuda-core-limit", "x", "must be 1 to 100 percent of a GPU"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := FromPod(annotated(map[string]string{test.key: test.value}), DefaultOptions())
			var refused *Error
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, test.key, refused.Key)
			assert.ErrorContains(t, err, test.want)
			assert.Less(t, len(err.Error()), 400, "it repeats no more than it has to")

			p := annotated(map[string]string{test.key: test.value})
			p.Containers[0].Resources = nil
			r, err := FromPod(p, DefaultOptions())
			require.NoError(t, err, "a pod without GPUs")
			assert.Nil(t, r)
		})
	}
}

func TestFits(t *testing.T) {
	types := Rules{UseTypes: []string{"a100", "h200"}, AvoidTypes: []string{"pcie"}}
	for model, want := range map[string]bool{"NVIDIA H200": true, "NVIDIA A100-SXM4-80GB": true, "NVIDIA A100-PCIE-40GB": false, "NVIDIA-Tesla T4": false, "": false} {
		assert.Equal(t, want, types.TypeFits(model), model)
	}
	assert.True(t, (&Rules{}).TypeFits("anything"))
	assert.False(t, (&Rules{AvoidTypes: []string{"t4"}}).TypeFits("Tesla T4"))

	use, avoid := Rules{UseUUIDs: []string{gpuA}}, Rules{AvoidUUIDs: []string{gpuA}}
	assert.True(t, use.UUIDFits(gpuA))
	assert.False(t, use.UUIDFits(gpuB))
	assert.False(t, avoid.UUIDFits(gpuA))
	assert.True(t, avoid.UUIDFits(gpuB))
	assert.False(t, (&Rules{UseUUIDs: []string{gpuA}, AvoidUUIDs: []string{gpuA}}).UUIDFits(gpuA), "both apply")

	modes := Rules{Modes: []string{"hami-core", "mps"}}
	assert.True(t, modes.ModeFits(""), "a GPU without a mode is shared")
	assert.True(t, modes.ModeFits(api.ModeMPS))
	assert.False(t, modes.ModeFits(api.ModeMIG))
	assert.True(t, (&Rules{}).ModeFits(api.ModeMIG))
}
