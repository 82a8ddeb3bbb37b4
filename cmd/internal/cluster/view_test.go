package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// A cordon in the Node object is shown, and one of the node itself.
func TestCordonsInTheViewOfACluster(t *testing.T) {
	cordoned := func(name, uuids string) *v1.Node {
		n := node(name, gpuA, gpuB)
		n.Annotations[api.AnnotationHAMiCordon] = uuids
		return n
	}
	c, _ := of(map[string]any{"gpuslice/agent-n1:9394/api/v1/view": view.Node{GPUs: []view.GPU{{UUID: gpuA, Healthy: true, Cordoned: true}, {UUID: gpuB, Healthy: true}}}},
		cordoned("n1", gpuB), cordoned("n2", gpuA), cordoned("n3", "not a GPU"), server("agent", "n1", "metrics", 9394), server("agent", "n2", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	got := map[string]bool{}
	for _, gpu := range n.GPUs {
		got[gpu.Node+" "+gpu.UUID] = gpu.Cordoned
	}
	assert.Equal(t, map[string]bool{"n1 " + gpuA: true, "n1 " + gpuB: true, "n2 " + gpuA: true, "n2 " + gpuB: false}, got)
	require.Len(t, n.Problems, 2)
	assert.Contains(t, n.Problems[0], "node n2: its agent (pod gpuslice/agent-n2) does not answer")
	assert.Contains(t, n.Problems[1], "node n3: GPUs in its Node object cannot be read: ")
}

// An unhealthy GPU has a reason, also without an agent.
func TestUnhealthyGPUWithoutAnAgent(t *testing.T) {
	sick := node("n1", gpuA)
	sick.Annotations[api.AnnotationNodeGPUs] = strings.ReplaceAll(sick.Annotations[api.AnnotationNodeGPUs], `"healthy":true`, `"healthy":false`)
	c, _ := of(nil, sick, server("agent", "n1", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.GPUs, 1)
	assert.False(t, n.GPUs[0].Healthy)
	assert.Equal(t, "by its Node object; the reason is in the log of its node's agent", n.GPUs[0].Unhealthy)
}
