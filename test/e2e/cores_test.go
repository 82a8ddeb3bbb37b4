//go:build e2e

package e2e_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Two pods that both want all of a GPU divide its time by their shares.
func TestSharesOfComputeTime(t *testing.T) {
	s := newSpace(t)
	uuid := gpus(t)[0]
	for name, cores := range map[string]int{"less": 30, "more": 70} {
		c := container("main", gpu(4000, cores))
		c.Command = harness.Busy
		c.Env = []corev1.EnvVar{{Name: "SIMGPU_GROUP", Value: strconv.Itoa(cores)}}
		p := pod(name, c)
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": uuid}
		s.run(p)
	}
	shares := map[int]int{30: 30, 70: 70}
	require.NoError(t, cluster.HoldShares(context.Background(), 0, shares, 5))
	require.NoError(t, cluster.RestartAgentWith(context.Background()))
	require.NoError(t, cluster.HoldShares(context.Background(), 0, shares, 5), "with the next agent")
}
