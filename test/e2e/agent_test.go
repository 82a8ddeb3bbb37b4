//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// withAgent restarts the agent with these arguments until the test ends, and waits until
// the node offers what is wanted of a resource.
func withAgent(t *testing.T, resource corev1.ResourceName, want int64, args ...string) {
	require.NoError(t, cluster.RestartAgentWith(context.Background(), args...))
	t.Cleanup(func() {
		require.NoError(t, cluster.RestartAgentWith(context.Background()))
		waitOffered(t, "nvidia.com/gpu", 80)
	})
	waitOffered(t, resource, want)
}

func waitOffered(t *testing.T, resource corev1.ResourceName, want int64) {
	require.NoError(t, cluster.WaitOffered(context.Background(), resource, want))
}

// unscheduledPod is bound to the node by its author, and no scheduler has seen it.
func (s *space) unscheduledPod(name string, count string) *corev1.Pod {
	p := pod(name, container("main", resources{"nvidia.com/gpu": count}))
	p.Spec.NodeName = harness.NodeName
	_, err := cluster.API.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
	require.NoError(s.t, err)
	return s.wait(name, kube.Running)
}

// A pod that no scheduler of ours has seen has no GPU, or the equal share that its
// replicas are, as the agent's operator has it.
func TestUnscheduledPolicy(t *testing.T) {
	withoutAdmission(t)
	t.Run("deny", func(t *testing.T) {
		s := newSpace(t)
		require.Empty(t, s.devices(s.unscheduledPod("p", "1"), "main"))
	})
	t.Run("share", func(t *testing.T) {
		withAgent(t, "nvidia.com/gpu", 40, "--unscheduled-policy=share", "--device-split-count=5")
		s := newSpace(t)
		devices := s.devices(s.unscheduledPod("p", "1"), "main")
		require.Len(t, devices, 1)
		status, err := cluster.Status(context.Background())
		require.NoError(t, err)
		for _, c := range status.GPUs {
			if c.UUID == devices[0].uuid {
				require.Equal(t, c.MemoryMiB/5, devices[0].totalMiB)
			}
		}
	})
}

// On a node of the chart the doctor reports no finding about a part that works. The agent runs in a pod, with
// its own network. The test ignores findings about the driver, because parts of it are missing on the
// machine.
func TestDoctor(t *testing.T) {
	out, stderr, _, err := cluster.OnNode(context.Background(), "gpuslice", "doctor", "-o", "json",
		"--runtime-socket", cluster.RuntimeSocket(), "--runtime-config", cluster.RuntimeConfig())
	require.NoError(t, err)
	var report struct {
		Checks []struct {
			Check, State, Found string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report), "%s%s", out, stderr)
	states, found := map[string]string{}, map[string]string{}
	for _, c := range report.Checks {
		states[c.Check], found[c.Check] = c.State, c.Found
	}
	assert.Equal(t, "running in a pod and ready", found["agent"])
	for _, check := range []string{"runtime", "runtime-config", "nri", "kubelet", "library-dir", "agent"} {
		assert.Equal(t, "ok", states[check], "%s: %s", check, found[check])
	}
	assert.Contains(t, []string{"ok", "warn"}, states["state-dir"], found["state-dir"]) // it needn't be a tmpfs of its own
}
