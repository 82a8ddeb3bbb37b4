//go:build root

package docker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// grantOf annotates a pod with a share of a GPU, as HAMi's scheduler does.
func grantOf(uuid string, memoryMiB, cores int) map[string]string {
	return map[string]string{"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,%d:;", uuid, memoryMiB, cores)}
}

// Docker and Kubernetes on one node have one ledger: neither is given what the other has.
func TestDockerBesideKubernetes(t *testing.T) {
	ctx := context.Background()
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	n, err := harness.NewNode(ctx, harness.NodeOptions{
		Containerd: harness.ContainerdOptions{Runtimes: map[string]string{"gpuslice": wrapper}},
	})
	t.Cleanup(func() {
		if n != nil {
			assert.NoError(t, n.Close(ctx))
		}
	})
	require.NoError(t, err)
	require.NoError(t, n.WriteRuntimeConfig(""))
	d := newDocker(t, n.Machine, harness.DockerdOptions{})
	s, err := n.Status(ctx)
	require.NoError(t, err)
	uuid := s.GPUs[0].UUID

	// Half of them ask here and half there, all at once, and seven times 20000 MiB fit.
	const asking, each, fit = 6, 20000, 7
	var wg sync.WaitGroup
	for i := range asking {
		wg.Go(func() {
			args := append([]string{"--detach"}, share(each, 10)...)
			if _, err := d.Docker(ctx, sliced(append(args, harness.WorkloadImage)...)...); err != nil {
				assert.ErrorContains(t, err, "not enough free GPU capacity")
			}
		})
		wg.Go(func() {
			pod, err := n.RunPod(ctx, harness.Pod{Name: fmt.Sprintf("p%d", i), Annotations: grantOf(uuid, each, 10)})
			if assert.NoError(t, err) {
				if _, err := pod.Start(ctx, harness.Container{Name: "main"}); err != nil {
					assert.ErrorContains(t, err, uuid)
				}
			}
		})
	}
	wg.Wait()
	requireReserved(t, n.Machine, fit*each, fit)

	// The agent starts again: what docker's containers have is none of its own to give back.
	ids, err := d.Containers(ctx)
	require.NoError(t, err)
	require.NoError(t, n.RestartAgent(ctx))
	requireReserved(t, n.Machine, fit*each, fit)
	require.NoError(t, n.RemoveAllPods(ctx))
	running := 0
	for _, id := range ids {
		if out, err := d.Docker(ctx, "exec", id, workload("meminfo")); err == nil {
			running++
			requireSees(t, harness.KeyValues(out), each)
		}
	}
	requireReserved(t, n.Machine, int64(running*each), running)
	require.NoError(t, d.RemoveAll(ctx))
	requireNothingLeft(t, n.Machine)

	// What the NRI plugin has limited goes past the wrapper as it is.
	pod, err := n.RunPod(ctx, harness.Pod{Name: "handler", Handler: "gpuslice", Annotations: grantOf(uuid, 3000, 10)})
	require.NoError(t, err)
	id, err := pod.Start(ctx, harness.Container{Name: "main", Env: []string{"GPUSLICE_MEMORY=100GiB"}})
	require.NoError(t, err)
	stdout, stderr, code, err := n.Exec(ctx, id, workload("meminfo"))
	require.NoError(t, err)
	require.Zero(t, code, stderr)
	requireSees(t, harness.KeyValues(stdout), 3000)
	requireReserved(t, n.Machine, 3000, 1)
	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, n.Machine)
}
