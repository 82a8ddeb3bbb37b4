package cluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// The answer of a node's agent, or of a pod that imitates it, is shown for that node only, and does
// not change the next query.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"name":"x","gpus":[{"node":"n2","uuid":"` + gpuA + `"}],"containers":[{"node":"n2","pod":"a/b","shares":[{}]}],"problems":["p"]}`))
	f.Add([]byte(`{"containers":null,"gpus":{}}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"state":"reserved","choice":{},"nodes":[{}]}`))
	p := granted(f, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, _ := of(nil, node("n1", gpuA), server("agent", "n1", "metrics", 9394), server("scheduler", "n1", "http", 9395), p)
	f.Fuzz(func(t *testing.T, body []byte) {
		c.get = func(context.Context, string, string, string, map[string]string) ([]byte, error) { return body, nil }
		n, err := c.View(t.Context())
		require.NoError(t, err)
		for _, gpu := range n.GPUs {
			require.Equal(t, "n1", gpu.Node)
		}
		for _, container := range n.Containers {
			require.Equal(t, "n1", container.Node)
		}
		_, _, err = c.Node(t.Context(), "n1")
		require.NoError(t, err)
		_, _ = c.Explain(t.Context(), "ns", "p")
		_, _ = c.applied(t.Context(), p, "main", []grant.Share{{UUID: gpuA, MemoryMiB: 1}})
		resized := p.DeepCopy()
		resized.Annotations[api.AnnotationResizeStatus] = string(body)
		_, _ = answer(resized, "request")
	})
}
