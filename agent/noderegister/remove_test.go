package noderegister

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

// What the agent has written goes; what an operator or HAMi has written, or has changed since, stays.
func TestRemove(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		before := p.server.now()
		require.Contains(t, before.Annotations, api.AnnotationNodeGPUs)
		require.Contains(t, before.Labels, api.LabelPrefix+"count")
		p.server.annotate("hami.io/device-cordon", "GPU-1")
		p.stop()
		removed, err := Remove(context.Background(), p.server.client(), nodeName)
		require.NoError(t, err)
		require.Positive(t, removed)
		after := p.server.now()
		require.NotContains(t, after.Annotations, api.AnnotationNodeGPUs)
		require.NotContains(t, after.Annotations, api.AnnotationHAMiRegister)
		require.NotContains(t, after.Labels, api.LabelPrefix+"count")
		require.Equal(t, "GPU-1", after.Annotations["hami.io/device-cordon"])

		again, err := Remove(context.Background(), p.server.client(), nodeName)
		require.NoError(t, err)
		require.Zero(t, again)
	})
}

func TestRemoveWithoutServer(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		p.server.setDown(true)
		_, err := Remove(context.Background(), p.server.client(), nodeName)
		require.ErrorContains(t, err, "read the node")
	})
}
