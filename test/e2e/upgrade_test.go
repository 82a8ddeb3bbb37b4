//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// job is a pod that computes, and ends with the first error that the driver or the limiter gives it, or with the first
// allocation beyond its limit that it is given.
func job(name string) *corev1.Pod {
	p := pod(name, container("main", gpu(2000, 30)))
	p.Spec.Containers[0].Command = []string{workload("job"), "--mib=500", "--refused-mib=3000"}
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// rounds is how many a job has done. It fails where the job has had an error.
func (s *space) rounds(name string) int64 {
	p := s.wait(name, kube.Running)
	require.Zero(s.t, p.Status.ContainerStatuses[0].RestartCount)
	text, err := cluster.Logs(p, "main")
	require.NoError(s.t, err)
	require.NotContains(s.t, text, "error=")
	last := int64(0)
	for line := range strings.Lines(text) {
		if n, is := strings.CutPrefix(strings.TrimSpace(line), "rounds="); is {
			last = number(s.t, n)
		}
	}
	return last
}

// requireGoesOn waits until a job has done more than it had.
func (s *space) requireGoesOn(names ...string) {
	for _, name := range names {
		before := s.rounds(name)
		require.NoError(s.t, harness.Until(context.Background(), patience, func(context.Context) error {
			if now := s.rounds(name); now < before+20 {
				return fmt.Errorf("job %s has done %d rounds, %d of them before", name, now, before)
			}
			return nil
		}))
	}
}

// library is the limiter's file on the node that a pod was made with.
func (s *space) library(name string) string {
	p := s.wait(name, kube.Running)
	spec, err := cluster.Spec(context.Background(), strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"))
	require.NoError(s.t, err)
	for _, m := range spec.Mounts {
		if m.Destination == "/.gpuslice/libvgpu.so" {
			return filepath.Base(m.Source)
		}
	}
	require.Fail(s.t, "there is no limiter in pod "+name)
	return ""
}

// waitInstalled waits until the node has just these libraries.
func waitInstalled(t *testing.T, want ...string) {
	require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
		files, err := filepath.Glob(filepath.Join(cluster.LibraryDir(), "libvgpu-????????????????.so"))
		if err != nil {
			return err
		}
		var have []string
		for _, f := range files {
			have = append(have, filepath.Base(f))
		}
		if len(have) != len(want) {
			return fmt.Errorf("the node has the libraries %q and not %q", have, want)
		}
		for _, name := range want {
			if _, err := os.Stat(filepath.Join(cluster.LibraryDir(), name)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// agentImage is the image that the agent's pod runs.
func agentImage(t *testing.T) string {
	pods, err := cluster.PodsOf(context.Background(), "agent")
	require.NoError(t, err)
	require.Len(t, pods, 1)
	return pods[0].Spec.Containers[0].Image
}

// While agent, scheduler, webhook and limiter are upgraded, and while they are rolled back, by the guide,
// jobs continue to compute without an error. Each container keeps the limiter of its creation, and the next
// container gets the one that is installed. A pod that is created during the upgrade waits, and runs.
func TestUpgradeAndRollback(t *testing.T) {
	ctx := context.Background()
	require.NoError(t, cluster.ImportNextImage(ctx))
	s := newSpace(t)
	s.run(job("before"))
	s.requireGoesOn("before")
	first := s.library("before")
	waitInstalled(t, first)

	during := make(chan error, 1)
	go func() {
		// An API server that reaches no webhook for a moment refuses pods with GPUs; the test creates the pod
		// again.
		during <- harness.Until(ctx, patience, func(ctx context.Context) error {
			_, err := s.tenant.CoreV1().Pods(s.name).Create(ctx, job("during"), metav1.CreateOptions{})
			return err
		})
	}()
	rolledBack := false
	t.Cleanup(func() {
		if !rolledBack {
			require.NoError(t, cluster.InstallChart(ctx))
		}
	})
	r := newReader(t, map[string]string{"NEW": kube.NextTag})
	for _, b := range blocksOf(t, "docs/UPGRADING.md#Upgrade") {
		r.does(b)
	}
	require.NoError(t, <-during)
	require.NoError(t, cluster.WaitRelease(ctx))
	require.NoError(t, cluster.WaitNode(ctx))
	require.Contains(t, agentImage(t), ":"+kube.NextTag)
	s.wait("during", kube.Running)
	s.run(job("upgraded"))
	second := s.library("upgraded")
	require.NotEqual(t, first, second)
	require.Equal(t, first, s.library("before"))
	s.requireGoesOn("before", "during", "upgraded")
	waitInstalled(t, first, second)

	for _, b := range blocksOf(t, "docs/UPGRADING.md#Rollback") {
		r.does(b)
	}
	require.NoError(t, cluster.WaitRelease(ctx))
	require.NoError(t, cluster.WaitNode(ctx))
	rolledBack = true
	require.NotContains(t, agentImage(t), ":"+kube.NextTag)
	s.run(job("rolled-back"))
	require.Equal(t, first, s.library("rolled-back"))
	require.Equal(t, second, s.library("upgraded"))
	s.requireGoesOn("before", "during", "upgraded", "rolled-back")

	// No container uses the upgrade's library any more: it is removed when it is old. The other one stays.
	long := time.Now().Add(-2 * oci.LibraryGrace)
	require.NoError(t, os.Chtimes(filepath.Join(cluster.LibraryDir(), second), long, long))
	for _, name := range []string{"upgraded", "during"} {
		s.delete(name)
	}
	waitInstalled(t, first)
	s.requireGoesOn("before", "rolled-back")
}

// When the GPU operator comes, its RuntimeClass is the chart's of before: pods name it all the time.
func TestRuntimeClassStaysWithTheGPUOperator(t *testing.T) {
	ctx := context.Background()
	const release, class = "classes", "kept-by-gpuslice"
	root, err := harness.Repository()
	require.NoError(t, err)
	there := func() error {
		_, err := cluster.API.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
		return err
	}
	upgrade := func(sets ...string) {
		// Only the RuntimeClass of the chart.
		args := []string{"upgrade", "--install", release, filepath.Join(root, "install/charts/gpuslice"), "--set=agent.driver.runtimeClassName=" + class,
			"--set=agent.enabled=false,scheduler.enabled=false,webhook.enabled=false,grantKey.enabled=false,rbac.people=false,admission.policy=false,admission.privilegedPods=off"}
		out, err := cluster.Helm(ctx, append(args, sets...)...)
		require.NoError(t, err, out)
	}
	t.Cleanup(func() {
		_, _ = cluster.Helm(ctx, "uninstall", release, "--ignore-not-found")
		require.NoError(t, cluster.API.NodeV1().RuntimeClasses().Delete(ctx, class, metav1.DeleteOptions{}))
	})
	upgrade()
	require.NoError(t, there())
	upgrade() // it is its own
	require.NoError(t, there())
	upgrade("--set=gpuOperator.enabled=true")
	require.NoError(t, there())
	out, err := cluster.Helm(ctx, "uninstall", release)
	require.NoError(t, err, out)
	require.NoError(t, there())
}
