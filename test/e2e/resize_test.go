//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// kubectlGPUSlice runs the plugin as an administrator of the cluster.
func kubectlGPUSlice(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := harness.Artefact("bin", "kubectl-gpuslice")
	require.NoError(t, err)
	kubeconfig, err := cluster.Kubeconfig(kube.Admin)
	require.NoError(t, err)
	return harness.Run(context.Background(), nil, program, append(args, "--kubeconfig", kubeconfig)...)
}

// A pod gets more and less while it runs; its container keeps that when it restarts in the
// sandbox that it has, also after the agent was restarted.
func TestResizeOfAPod(t *testing.T) {
	s := newSpace(t)
	p := s.run(pod("p", container("main", gpu(2000, 20))))
	s.requireHeld(p, "main", 2000)

	out, err := kubectlGPUSlice(t, "resize", s.name+"/p", "--memory", "4000MiB", "--cores", "40")
	require.NoError(t, err, out)
	require.Contains(t, out, "memory 2000 -> 4000 MiB, cores 20 % -> 40 %")
	s.wait("p", func(*corev1.Pod) error {
		if devices := s.devices(p, "main"); len(devices) != 1 || devices[0].totalMiB != 4000 {
			return fmt.Errorf("it has %v", devices)
		}
		return nil
	})
	s.requireHeld(p, "main", 4000)

	restart := func() {
		t.Helper()
		_, _, _, err := cluster.ExecIn(context.Background(), p, "main", "/bin/sh", "-c", "kill 1")
		require.NoError(t, err)
		before := p.Status.ContainerStatuses[0].RestartCount
		p = s.wait("p", func(now *corev1.Pod) error {
			if len(now.Status.ContainerStatuses) == 0 || now.Status.ContainerStatuses[0].RestartCount == before {
				return fmt.Errorf("it has not restarted")
			}
			return kube.Running(now)
		})
	}
	restart()
	s.requireHeld(p, "main", 4000)
	require.NoError(t, cluster.RestartAgentWith(context.Background()))
	restart()
	s.requireHeld(p, "main", 4000)

	out, err = kubectlGPUSlice(t, "resize", s.name+"/p", "--memory", "900000MiB")
	require.Error(t, err)
	require.ErrorContains(t, err, "are free for it", out)
	out, err = kubectlGPUSlice(t, "resize", s.name+"/p", "--memory", "1000MiB")
	require.NoError(t, err, out)
	s.wait("p", func(*corev1.Pod) error {
		if devices := s.devices(p, "main"); len(devices) != 1 || devices[0].totalMiB != 1000 {
			return fmt.Errorf("it has %v", devices)
		}
		return nil
	})

	// A tenant may request a resize. It can neither write the answer nor request invalid amounts.
	patch := func(key, value string) error {
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
		require.NoError(t, err)
		_, err = s.tenant.CoreV1().Pods(s.name).Patch(context.Background(), "p", types.MergePatchType, data, metav1.PatchOptions{})
		return err
	}
	require.ErrorContains(t, patch("gpuslice.io/resize-status", "{}"), "only the scheduler")
	require.ErrorContains(t, patch("gpuslice.io/resize", `{"side":{"cores":1}}`), "has no container")
	require.NoError(t, patch("gpuslice.io/resize", `{"main":{"memoryMiB":1500}}`))
	s.wait("p", func(*corev1.Pod) error {
		if devices := s.devices(p, "main"); len(devices) != 1 || devices[0].totalMiB != 1500 {
			return fmt.Errorf("it has %v", devices)
		}
		return nil
	})
	s.delete("p")
}

// A pod that waits, and one that runs, are explained by the scheduler itself.
func TestExplain(t *testing.T) {
	s := newSpace(t)
	s.run(pod("runs", container("main", gpu(2000, 20))))
	out, err := kubectlGPUSlice(t, "explain", s.name+"/runs")
	require.NoError(t, err, out)
	require.Contains(t, out, "it is on node "+harness.NodeName+": main has 2000 MiB of GPU-")
	s.create(pod("waits", container("main", gpu(9_000_000, 20))))
	s.wait("waits", func(p *corev1.Pod) error {
		if len(p.Status.Conditions) == 0 {
			return fmt.Errorf("it was not tried yet")
		}
		return nil
	})
	out, err = kubectlGPUSlice(t, "explain", s.name+"/waits")
	require.NoError(t, err, out)
	require.Contains(t, out, "with less than 9000000 MiB free")
	s.delete("waits")
	s.delete("runs")
}
