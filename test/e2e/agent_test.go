//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// GPUDirect Storage, Mellanox OFED and GDRCopy, as NVIDIA's toolkit describes them by CDI, are in a pod with a share and in no
// other. The agent labels its node as feature discovery does, as far as the API server's policy permits, and removes the labels.
func TestFeatures(t *testing.T) {
	config := filepath.Join(cluster.Dir, "cufile.json")
	require.NoError(t, os.WriteFile(config, []byte("of GDS\n"), 0o644))
	for kind, edits := range map[string]string{
		"gds":     fmt.Sprintf("mounts: [{hostPath: %s, containerPath: /etc/cufile.json, options: [ro, bind]}]", config),
		"mofed":   "deviceNodes: [{path: /dev/infiniband/uverbs0, type: c, major: 1, minor: 3}]",
		"gdrcopy": "deviceNodes: [{path: /dev/gdrdrv, type: c, major: 1, minor: 5}]",
	} {
		file := filepath.Join(cluster.CDIDir(), kind+".yaml")
		text := fmt.Sprintf("cdiVersion: 0.5.0\nkind: nvidia.com/%s\ndevices: [{name: all, containerEdits: {%s}}]\n", kind, edits)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		t.Cleanup(func() { require.NoError(t, os.Remove(file)) })
	}
	labels := func() map[string]string {
		node, err := cluster.API.CoreV1().Nodes().Get(context.Background(), harness.NodeName, metav1.GetOptions{})
		require.NoError(t, err)
		return node.Labels
	}
	t.Run("with", func(t *testing.T) {
		withAgent(t, "nvidia.com/gpu", 80, "--gds-enabled", "--mofed-enabled", "--gdrcopy-enabled", "--imex-channel-ids=0", "--nvidia-labels")
		s := newSpace(t)
		has := "cat /etc/cufile.json; test -c /dev/infiniband/uverbs0 && head -c 1 /dev/gdrdrv | od -An -tx1"
		stdout, stderr, code, err := execIn(s.run(pod("p", container("main", gpu(2000, 10)))), "main", "/bin/busybox", "sh", "-c", has)
		require.NoError(t, err)
		require.Zero(t, code, stderr)
		require.Regexp(t, `^of GDS\n +00\n$`, stdout)
		stdout, _, code, err = execIn(s.run(pod("other", container("main", resources{}))), "main", "/bin/busybox", "sh", "-c", has)
		require.NoError(t, err)
		require.NotZero(t, code, stdout)
		l := labels()
		require.Equal(t, []string{"8", "8", "0", "true"}, []string{l["nvidia.com/gpu.count"], l["nvidia.com/gpu.compute.major"], l["nvidia.com/gpu.compute.minor"], l["nvidia.com/mig.capable"]})
		require.NotContains(t, l, "nvidia.com/gpu.product", "they are of two models")
	})
	require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
		if count, still := labels()["nvidia.com/gpu.count"]; still {
			return fmt.Errorf("the node still has nvidia.com/gpu.count=%s", count)
		}
		return nil
	}))
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
