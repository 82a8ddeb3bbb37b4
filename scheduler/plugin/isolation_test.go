package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
)

// isolated is a node of an agent that checks what pods request.
func isolated(node *v1.Node, isolation string) *v1.Node {
	node.Annotations[api.AnnotationNodeGPUs] = strings.ReplaceAll(node.Annotations[api.AnnotationNodeGPUs], `"healthy":true`, `"healthy":true,"isolation":"`+isolation+`"`)
	return node
}

func TestIsolation(t *testing.T) {
	w := newWorld(t, "", gpuNode("old", 1, 1), isolated(gpuNode("limiter", 1, 2), "limiter"), isolated(gpuNode("driver", 1, 3), "driver"),
		isolated(gpuNode("newer", 1, 4), "something-new"))
	const no, yes = fwk.UnschedulableAndUnresolvable, fwk.Success
	for isolation, want := range map[string][4]fwk.Code{
		"any": {yes, yes, yes, yes}, "limiter": {no, yes, yes, no}, "driver": {no, no, yes, no}, "hardware": {no, yes, yes, no},
	} {
		pod := gpuPod(isolation, 1000, 30)
		pod.Annotations = map[string]string{api.AnnotationIsolation: isolation}
		require.True(t, w.preFilter(t, pod).IsSuccess())
		var got [4]fwk.Code
		for i, node := range []string{"old", "limiter", "driver", "newer"} {
			got[i] = w.filter(t, w.state, pod, node)
			if got[i] == no {
				require.Equal(t, []string{"node(s): GPUs do not have the requested isolation"}, w.Filter(t.Context(), w.state, pod, on(node)).Reasons())
			}
		}
		require.Equal(t, want, got, isolation)
	}
	pod := gpuPod("bad", 1000, 30)
	pod.Annotations = map[string]string{api.AnnotationIsolation: "soft"}
	status := w.preFilter(t, pod)
	require.Equal(t, no, status.Code())
	require.Contains(t, status.Message(), `gpuslice.io/isolation: "soft": must be hardware, driver, limiter or any`)
}
