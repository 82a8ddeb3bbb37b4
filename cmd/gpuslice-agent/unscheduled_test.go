package main

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
)

// The policy reaches the decisions: with "share" a container's replicas are read, and
// one of a GPU that is not there refuses it.
func TestUnscheduledPolicy(t *testing.T) {
	for policy, refused := range map[string]bool{"deny": false, "share": true} {
		t.Run(policy, func(t *testing.T) {
			o := testOptions(t)
			o.UnscheduledPolicy = policy
			runtime := startRuntime(t, o.NRISocket)
			stop, log := o.run(t)
			require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, 20*time.Second, 5*time.Millisecond, "%v", log)
			// As containerd does: a plugin is asked from the end of its synchronisation on.
			block := runtime.BlockPluginSync()
			_, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
				Pod: &api.PodSandbox{Id: "s", Uid: "u-1", Name: "p", Namespace: "ns"},
				Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main", Annotations: map[string]string{
					gpuapi.AnnotationReplicas: "GPU-0a000000-1111-2222-3333-444455556666::0",
				}},
			})
			block.Unblock()
			if refused {
				require.ErrorContains(t, err, "no such GPU")
			} else {
				assert.NoError(t, err)
			}
			require.NoError(t, stop())
		})
	}
}
