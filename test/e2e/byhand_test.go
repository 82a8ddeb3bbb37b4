//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withoutAdmission makes the API server accept, until the test ends, what it would refuse: pods that no
// scheduler placed, with a grant of their authors.
func withoutAdmission(t *testing.T) {
	ctx := context.Background()
	require.NoError(t, cluster.RemoveAdmission(ctx))
	t.Cleanup(func() {
		require.NoError(t, cluster.InstallAdmission(ctx))
		waitForged(t, true)
	})
	waitForged(t, false)
}

// waitForged waits until the API server refuses forged pods, or takes them: it learns of
// its policies a moment later.
func waitForged(t *testing.T, refused bool) {
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		p := grantedByHand(pod("try", container("main", gpu(1000, 10))), nil)
		_, err := cluster.API.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if (err != nil) != refused {
			return fmt.Errorf("a forged pod: %v", err)
		}
		return nil
	}))
}

// The agent without a scheduler: the node publishes what it has, and the agent enforces the grant of a pod
// that is bound with one.
func TestGrantedByHand(t *testing.T) {
	withAgent(t, "nvidia.com/gpu", 80, "--grant-public-key-file=")
	withoutAdmission(t)
	s := newSpace(t)
	uuid := gpus(t)[3]
	p := grantedByHand(pod("p", container("main", gpu(3000, 30)), container("other", nil)), map[string]string{"main": share(uuid, 3000, 30)})
	made, err := cluster.API.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
	require.NoError(t, err)
	made = s.wait(made.Name, kube.Running)
	require.Equal(t, []device{{uuid, 3000}}, s.devices(made, "main"))
	s.requireHeld(made, "main", 3000)
	require.Empty(t, s.devices(made, "other"))
	s.delete(made.Name)
}

// If the node has the scheduler's public key, a forged grant is no grant, even if the API
// server takes it, and neither is one that belongs to another pod.
func TestSignedGrants(t *testing.T) {
	s := newSpace(t)
	signed := s.run(pod("signed", container("main", gpu(cheatMiB, cheatCores))))
	s.requireHeld(signed, "main", cheatMiB)

	withoutAdmission(t)
	for name, signature := range map[string]string{
		"unsigned": "", "signed-with-no-key": "v1:0123456789abcdef:" + strings.Repeat("0", 128), "signed-for-another": signed.Annotations[api.AnnotationSignature],
	} {
		p := grantedByHand(pod(name, container("main", gpu(cheatMiB, cheatCores))), map[string]string{"main": share(gpus(t)[0], cheatMiB, cheatCores)})
		if signature != "" {
			p.Annotations[api.AnnotationSignature] = signature
			p.Annotations[api.AnnotationGrant] = signed.Annotations[api.AnnotationGrant]
		}
		_, err := cluster.API.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
		require.NoError(t, err)
		came, _, says := s.cameOf(name)
		require.Equal(t, refused, came, name)
		require.Contains(t, says, "sign", name)
	}
}

// Schedulers read of the node what it has.
func TestNodeTellsOfItsGPUs(t *testing.T) {
	node, err := cluster.API.CoreV1().Nodes().Get(context.Background(), harness.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	var ours api.NodeGPUs
	require.NoError(t, json.Unmarshal([]byte(node.Annotations[api.AnnotationNodeGPUs]), &ours))
	var hamis []api.HAMiGPU
	require.NoError(t, json.Unmarshal([]byte(node.Annotations[api.AnnotationHAMiRegister]), &hamis))
	status, err := cluster.Status(context.Background())
	require.NoError(t, err)
	require.Len(t, ours.GPUs, len(status.GPUs))
	require.Len(t, hamis, len(status.GPUs))
	for i, gpu := range status.GPUs {
		require.Equal(t, []any{gpu.UUID, i, gpu.MemoryMiB, 100, 10, true, api.ModeShared},
			[]any{ours.GPUs[i].UUID, ours.GPUs[i].Index, *ours.GPUs[i].MemoryMiB, *ours.GPUs[i].Cores, *ours.GPUs[i].Replicas, *ours.GPUs[i].Healthy, ours.GPUs[i].Mode})
		require.Equal(t, []any{gpu.UUID, i, gpu.MemoryMiB, 100, 10, true, api.ModeShared},
			[]any{hamis[i].ID, hamis[i].Index, hamis[i].Memory, hamis[i].Core, hamis[i].Count, hamis[i].Health, hamis[i].Mode})
	}
	require.Len(t, ours.Links, len(status.GPUs))
	offered := node.Status.Allocatable["nvidia.com/gpu"]
	require.Equal(t, int64(80), offered.Value())
}
