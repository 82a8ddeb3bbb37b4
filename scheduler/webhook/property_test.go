package webhook

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// apply makes the patch's changes as the API server does.
func apply(t require.TestingT, object, patch []byte) []byte {
	if len(patch) == 0 {
		return object
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	require.NoError(t, err)
	patched, err := decoded.Apply(object)
	require.NoError(t, err)
	return patched
}

func quantities(names request.Names) *rapid.Generator[corev1.ResourceList] {
	key := rapid.SampledFrom([]string{names.Count, names.Memory, names.MemoryPercentage, names.Cores, names.Priority, names.VcudaCore, names.VcudaMemory, "cpu"})
	value := rapid.SampledFrom([]string{"0", "1", "2", "8", "30", "100", "200", "150", "8000", "-1", "1500m", "1e30", "1k"})
	return rapid.Custom(func(t *rapid.T) corev1.ResourceList {
		list := corev1.ResourceList{}
		for range rapid.IntRange(0, 4).Draw(t, "resources") {
			list[corev1.ResourceName(key.Draw(t, "resource"))] = resource.MustParse(value.Draw(t, "value"))
		}
		return list
	})
}

func containers(names request.Names, prefix string) *rapid.Generator[[]corev1.Container] {
	return rapid.Custom(func(t *rapid.T) []corev1.Container {
		list := make([]corev1.Container, rapid.IntRange(0, 3).Draw(t, "containers"))
		for i := range list {
			list[i].Name = prefix + string(rune('a'+i))
			list[i].Resources.Limits = quantities(names).Draw(t, "limits")
			if rapid.Bool().Draw(t, "with requests") {
				list[i].Resources.Requests = list[i].Resources.Limits.DeepCopy()
			}
			if rapid.Bool().Draw(t, "with a variable") {
				list[i].Env = []corev1.EnvVar{{Name: rapid.SampledFrom([]string{"A", api.EnvTaskPriority}).Draw(t, "variable"), Value: "x"}}
			}
			if always := corev1.ContainerRestartPolicyAlways; prefix == "init-" && rapid.Bool().Draw(t, "sidecar") {
				list[i].RestartPolicy = &always
			}
		}
		return list
	})
}

var annotated = rapid.MapOf(
	rapid.SampledFrom([]string{"a", requiredPlugins, requiredPlugins + "/pod", requiredPlugins + "/container.a", requiredPlugins + "/container.init-a", "nvidia.com/numa-bind"}),
	rapid.SampledFrom([]string{"", "true", "[gpuslice]", "[other]", `["90-gpuslice"]`, "{", "[]"}))

// TestMutate: what the webhook writes changes nothing of what the pod asks for; done twice it changes nothing
// more; and what it has written, validate doesn't refuse it for.
func TestMutate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := DefaultRules()
		rules.RuntimeClass = rapid.SampledFrom([]string{"", "nvidia"}).Draw(t, "runtime class")
		rules.Request.DefaultCount = rapid.IntRange(1, 3).Draw(t, "default count")
		rules.AllowPrivileged, rules.AllowNodeName = true, true
		pod := &corev1.Pod{}
		pod.Annotations = annotated.Draw(t, "annotations")
		pod.Spec.SchedulerName = rapid.SampledFrom([]string{"", "default-scheduler", "gpuslice-scheduler"}).Draw(t, "scheduler")
		pod.Spec.InitContainers = containers(rules.Request.Names, "init-").Draw(t, "init containers")
		pod.Spec.Containers = containers(rules.Request.Names, "").Draw(t, "containers")

		before, err := json.Marshal(pod)
		require.NoError(t, err)
		asked, askedErr := request.FromPod(convert.Pod(pod), rules.Request)
		patch := rules.mutate(pod)
		if asked == nil {
			require.Empty(t, patch)
			return
		}
		data, err := json.Marshal(patch)
		require.NoError(t, err)
		if len(patch) == 0 {
			data = nil
		}
		var mutated corev1.Pod
		require.NoError(t, json.Unmarshal(apply(t, before, data), &mutated))
		again, err := request.FromPod(convert.Pod(&mutated), rules.Request)
		require.Equal(t, askedErr, err)
		require.Equal(t, asked, again)
		require.Empty(t, rules.mutate(&mutated))
		require.Equal(t, "gpuslice-scheduler", mutated.Spec.SchedulerName)
		for i, c := range convert.Pod(&mutated).Containers {
			if has(c, rules.Request.Names.Memory) && asked.Containers[i].GPUs > 0 {
				require.True(t, has(c, rules.Request.Names.Count), "the kubelet and kube-scheduler count GPUs")
			}
		}
		if refused, _ := rules.validateNew(&mutated); refused != nil {
			require.Equal(t, ReasonPlugin, refused.reason)
			require.Contains(t, refused.message, "must be a list", "only a malformed list of the author")
		}
	})
}

// With any list of required plugins in a pod, afterwards our plugin is in it once, and all others stay.
func FuzzRequired(f *testing.F) {
	f.Add("")
	f.Add("[a, b]")
	f.Add("[gpuslice]")
	f.Add("[10-gpuslice]")
	f.Add("- &a x\n- *a\n- *a")
	f.Add("null")
	f.Add("a: {<<: *b}")
	f.Fuzz(func(t *testing.T, text string) {
		const plugin = "gpuslice"
		with, err := addPlugin("key", text, plugin)
		if err != nil {
			return
		}
		var before, after []string
		require.NoError(t, yaml.Unmarshal([]byte(text), &before))
		if with == "" {
			require.True(t, slices.ContainsFunc(before, func(entry string) bool { return isPlugin(entry, plugin) }))
			return
		}
		require.NoError(t, yaml.Unmarshal([]byte(with), &after))
		require.Equal(t, append(before, plugin), after)
		again, err := addPlugin("key", with, plugin)
		if len(with) <= maxRequired {
			require.NoError(t, err)
			require.Empty(t, again)
		}
	})
}
