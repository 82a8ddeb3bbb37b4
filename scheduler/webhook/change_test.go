package webhook

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"
)

func TestChanges(t *testing.T) {
	pod := func(annotations, limits string) string {
		return "metadata: {annotations: {" + annotations + "}}\nspec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {" + limits + "}}}\n"
	}
	bound := func(annotations, limits string) string {
		return pod(annotations, limits) + "  nodeName: node-1\n"
	}
	const required = `required-plugins.noderesource.dev: "[gpuslice]"`
	for _, tc := range []struct {
		name, before, after string
		denied              string
	}{
		{"a pod without GPUs", pod("", "cpu: 1"), pod("nvidia.com/numa-bind: x", "cpu: 1"), ""},
		{"a label of the author's", pod(required, "nvidia.com/gpu: 1"), pod(required+", a: b", "nvidia.com/gpu: 1"), ""},
		{"a rule that can't be read", pod(required, "nvidia.com/gpu: 1"), pod(required+", nvidia.com/numa-bind: x", "nvidia.com/gpu: 1"), "nvidia.com/numa-bind"},
		{"one that could not be read before", pod("nvidia.com/numa-bind: x", "nvidia.com/gpu: 1"), pod("nvidia.com/numa-bind: w", "nvidia.com/gpu: 1"), ""},
		{"the required plugin goes", pod(required, "nvidia.com/gpu: 1"), pod("", "nvidia.com/gpu: 1"), `NRI plugin "gpuslice"`},
		{"the required plugin is overruled", pod(required, "nvidia.com/gpu: 1"), pod(required+`, required-plugins.noderesource.dev/container.main: "[]"`, "nvidia.com/gpu: 1"), `NRI plugin "gpuslice"`},
		{"it was not required before", pod("", "nvidia.com/gpu: 1"), pod("a: b", "nvidia.com/gpu: 1"), ""},
		{"a resize", pod(required, "nvidia.com/gpu: 1"), pod(required+`, gpuslice.io/resize: '{"main":{"memoryMiB":9000}}'`, "nvidia.com/gpu: 1"), ""},
		{"a resize of nothing", pod(required, "nvidia.com/gpu: 1"), pod(required+`, gpuslice.io/resize: '{"main":{}}'`, "nvidia.com/gpu: 1"), "neither memoryMiB nor cores"},
		{"a resize to nothing", pod(required, "nvidia.com/gpu: 1"), pod(required+`, gpuslice.io/resize: '{"main":{"memoryMiB":0}}'`, "nvidia.com/gpu: 1"), "whole number from 1"},
		{"a resize of a pod without GPUs", pod("", "cpu: 1"), pod(`gpuslice.io/resize: '{"main":{"memoryMiB":9000}}'`, "cpu: 1"), ""},
		{"a resize of another container", pod(required, "nvidia.com/gpu: 1"), pod(required+`, gpuslice.io/resize: '{"side":{"cores":9}}'`, "nvidia.com/gpu: 1"), `no container "side"`},
		{"a bad resize that was there", pod(required+", gpuslice.io/resize: x", "nvidia.com/gpu: 1"), pod(required+", gpuslice.io/resize: x, a: b", "nvidia.com/gpu: 1"), ""},
		{"an isolation before the pod has a node", pod(required, "nvidia.com/gpu: 1"), pod(required+", gpuslice.io/isolation: hardware", "nvidia.com/gpu: 1"), ""},
		{"a bad isolation", pod(required, "nvidia.com/gpu: 1"), pod(required+", gpuslice.io/isolation: strong", "nvidia.com/gpu: 1"), "must be hardware, driver, limiter or any"},
		{"an isolation of a bound pod", bound(required, "nvidia.com/gpu: 1"), bound(required+", gpuslice.io/isolation: hardware", "nvidia.com/gpu: 1"), "chose for the isolation any"},
		{"a weaker one", bound(required+", gpuslice.io/isolation: driver", "nvidia.com/gpu: 1"), bound(required+", gpuslice.io/isolation: limiter", "nvidia.com/gpu: 1"), "chose for the isolation driver"},
		{"one that is removed", bound(required+", nvidia.com/vgpu-mode: mig", "nvidia.com/gpu: 1"), bound(required, "nvidia.com/gpu: 1"), "chose for the isolation hardware"},
		{"the same one, written in another way", bound(required+", nvidia.com/vgpu-mode: mig", "nvidia.com/gpu: 1"), bound(required+", gpuslice.io/isolation: hardware", "nvidia.com/gpu: 1"), ""},
		{"it is required from now on", pod("", "nvidia.com/gpu: 1"), pod(required, "nvidia.com/gpu: 1"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := newPod(t, tc.after)
			request.Operation = admissionv1.Update
			old, err := yaml.YAMLToJSON([]byte(tc.before))
			require.NoError(t, err)
			request.OldObject.Raw = old
			answer := ask(t, DefaultRules(), "/validate", request)
			require.Equal(t, tc.denied == "", answer.Allowed, "%v", answer.Result)
			if tc.denied != "" {
				require.Contains(t, answer.Result.Message, tc.denied)
			}
			require.Empty(t, string(ask(t, DefaultRules(), "/mutate", request).Patch), "only new pods are changed")
		})
	}
}

func TestMissingRequirements(t *testing.T) {
	const key = requiredPlugins
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		containers  []string
		want        map[string]string
	}{
		{"none there", nil, []string{"a", "b"}, map[string]string{key: `["gpuslice"]`}},
		{"no container", nil, nil, map[string]string{}},
		{"there", map[string]string{key: "[gpuslice]"}, []string{"a"}, map[string]string{}},
		{"there with its index", map[string]string{key: "[90-gpuslice]"}, []string{"a"}, map[string]string{}},
		{"a name that ends like ours", map[string]string{key: "[not-gpuslice]"}, []string{"a"}, map[string]string{key: `["not-gpuslice","gpuslice"]`}},
		{"as YAML has lists", map[string]string{key: "- other\n- gpuslice\n"}, []string{"a"}, map[string]string{}},
		{"the pod's is read before the bare key", map[string]string{key: "[gpuslice]", key + "/pod": "[]"}, []string{"a"}, map[string]string{key + "/pod": `["gpuslice"]`}},
		{"the container's before both", map[string]string{key: "[gpuslice]", key + "/pod": "[gpuslice]", key + "/container.a": "[other]"}, []string{"a", "b"},
			map[string]string{key + "/container.a": `["other","gpuslice"]`}},
		{"another container's is none of ours", map[string]string{key + "/container.c": "[]", key: "[gpuslice]"}, []string{"a"}, map[string]string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := missingRequirements(tc.annotations, tc.containers, "gpuslice")
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	_, err := missingRequirements(map[string]string{key: "gpuslice"}, []string{"a"}, "gpuslice")
	require.ErrorContains(t, err, "must be a list")
}

func TestResizeOfNewPod(t *testing.T) {
	request := newPod(t, `metadata: {annotations: {gpuslice.io/resize: '{"main":{"memoryMiB":9000}}'}}
spec: {containers: [{name: main}]}`)
	answer := ask(t, DefaultRules(), "/validate", request)
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Result.Message, "set the limits of the containers")
}

// TestTolerances: each form that NRI reads, and the users that may set it.
func TestTolerances(t *testing.T) {
	const key = "gpuslice.io/tolerate-missing-plugins"
	rules := DefaultRules()
	rules.ToleratedUsers = []string{"operator"}
	for _, form := range []string{key, key + "/pod", key + "/container.main"} {
		with := map[string]string{form: "true"}
		require.Contains(t, rules.checkTolerance("alice", "team-a", nil, with), form)
		require.Contains(t, rules.checkTolerance("alice", "team-a", map[string]string{form: "false"}, with), form)
		require.Empty(t, rules.checkTolerance("alice", "team-a", with, with))
		require.Empty(t, rules.checkTolerance("alice", "team-a", with, nil))
		require.Empty(t, rules.checkTolerance("alice", "kube-system", nil, with))
		require.Empty(t, rules.checkTolerance("operator", "team-a", nil, with))
	}
	require.Empty(t, rules.checkTolerance("alice", "team-a", nil, map[string]string{key + "x": "true", "x" + key: "true"}))
}
