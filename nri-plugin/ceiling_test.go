package nriplugin_test

import (
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The values of the pod and of the operator reach the limiter's files.
func TestCeilingAndPriorityReachTheClaim(t *testing.T) {
	claims := map[string]ledger.Claim{}
	f := newFixture(t, func(c *nriplugin.Config) {
		c.HighPriorityNamespaces = []string{"default"}
		populate := c.Populate
		c.Populate = func(dir string, claim ledger.Claim) error {
			claims[claim.ContainerID] = claim
			return populate(dir, claim)
		}
	})
	annotations := named("main", gpuB, 8000, 30)
	annotations[api.AnnotationVcudaCoreCeiling] = "70"
	ctr := newContainer("main", "CUDA_TASK_PRIORITY=0")
	_, err := f.runtime.create(newPod("p", annotations), ctr)
	require.NoError(t, err)
	assert.Equal(t, 70, claims[ctr.Id].CoreCeiling)
	assert.True(t, claims[ctr.Id].HighPriority)

	annotations = named("main", gpuB, 8000, 30)
	annotations[api.AnnotationCoreCeiling] = "much"
	_, err = f.runtime.create(newPod("q", annotations), newContainer("main"))
	require.ErrorContains(t, err, api.AnnotationCoreCeiling)

	elsewhere := newPod("r", named("main", gpuA, 8000, 30))
	elsewhere.Namespace = "other"
	ctr = newContainer("main", "CUDA_TASK_PRIORITY=0")
	_, err = f.runtime.create(elsewhere, ctr)
	require.NoError(t, err)
	assert.False(t, claims[ctr.Id].HighPriority, "a container can't set its own priority")
}
