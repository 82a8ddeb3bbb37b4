package extender

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
)

// The third node has an agent of an earlier version.
func TestIsolation(t *testing.T) {
	w := newWorld(t, 3, 1)
	for i, isolation := range []string{"limiter", "driver"} {
		gpus := strings.ReplaceAll(register(i, 1), `"healthy":true`, `"healthy":true,"isolation":"`+isolation+`"`)
		w.engine.SetNode(&scheduler.Node{Name: w.nodes[i], Annotations: map[string]string{api.AnnotationNodeGPUs: gpus}})
	}
	wants := func(isolation string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationIsolation: isolation} }
	}
	passed, result := w.filter(pod("driver", 1000, 30, wants("driver")))
	require.Equal(t, []string{w.nodes[1]}, passed)
	require.Contains(t, result.FailedAndUnresolvableNodes[w.nodes[0]], "1 with the isolation limiter, but driver is requested")
	require.Contains(t, result.FailedAndUnresolvableNodes[w.nodes[2]], "1 with the isolation not known, but driver is requested")

	node, why := w.place(pod("whole", 1000, 30, wants("hardware")))
	require.Empty(t, why)
	require.Contains(t, w.nodes[:2], node)
	require.Equal(t, int64(81920), w.audit()[gpuUUID(map[string]int{w.nodes[0]: 0, w.nodes[1]: 1}[node], 0)])
	require.Contains(t, w.cluster.named("whole").Annotations[api.AnnotationGrant], `"memoryMiB":81920,"cores":100`)
	passed, _ = w.filterOf(pod("beside", 1, 0), []string{node})
	require.Empty(t, passed)

	_, result = w.filter(pod("bad", 1000, 30, wants("soft")))
	require.Contains(t, result.Error+result.FailedAndUnresolvableNodes[w.nodes[0]], "must be hardware, driver, limiter or any")
}
