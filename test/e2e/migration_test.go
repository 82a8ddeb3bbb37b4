//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// migrated is a pod, or two of a Deployment, as users of HAMi or gpu-manager have written it (directory migration), and what
// it is to have here without a change.
type migrated struct {
	file string
	pods int
	// want is MiB by GPU of each pod; negative: percent of the GPU.
	want []int64
	// cores is percent of each GPU; 0: not limited.
	cores int
	// model is of which the GPUs are to be; empty: any.
	model string
	// check looks at what is special.
	check func(t *testing.T, pods []corev1.Pod)
}

var fromHAMi = []migrated{
	{file: "memory-mib", want: []int64{3000}},
	{file: "memory-percentage", want: []int64{-50, -50}},
	{file: "cores", want: []int64{3000}, cores: 30},
	{file: "several-gpus", want: []int64{3000, 3000}, cores: 30},
	{file: "exclusive", want: []int64{-100}, cores: 100},
	{file: "memory-only", want: []int64{2000}},
	{file: "use-gputype", want: []int64{3000}, model: "A100"},
	{file: "nouse-gputype", want: []int64{3000}, model: "A100"},
	{file: "priority", want: []int64{3000}, check: func(t *testing.T, pods []corev1.Pod) {
		// The agent sets the variable to the priority that it gave.
		stdout, stderr, exitCode, err := cluster.ExecIn(context.Background(), &pods[0], "main", "sh", "-c", "echo $CUDA_TASK_PRIORITY")
		require.NoError(t, err)
		require.Zero(t, exitCode, stderr)
		require.Equal(t, "0", strings.TrimSpace(stdout))
	}},
	{file: "binpack", pods: 2, want: []int64{3000}, check: func(t *testing.T, pods []corev1.Pod) {
		require.Equal(t, uuids(placed(t, &pods[0])["main"]), uuids(placed(t, &pods[1])["main"]))
	}},
	{file: "spread", pods: 2, want: []int64{3000}, check: func(t *testing.T, pods []corev1.Pod) {
		require.NotEqual(t, uuids(placed(t, &pods[0])["main"]), uuids(placed(t, &pods[1])["main"]))
	}},
}

var fromGPUManager = []migrated{
	{file: "vcuda", want: []int64{20 * 256}, cores: 50},
	{file: "whole-gpu", want: []int64{-100}, cores: 100},
	{file: "two-gpus", want: []int64{-100, -100}, cores: 100},
	{file: "core-limit", want: []int64{10 * 256}, cores: 30},
}

// withImage has an image of ours under the name that the pods of this directory have.
func withImage(t *testing.T) {
	_, err := cluster.Ctr(context.Background(), "images", "tag", "--force", harness.WorkloadImage, "docker.io/library/ubuntu:22.04")
	require.NoError(t, err)
}

// runMigrated applies what its users have written, as they do, and waits until it runs.
func (s *space) runMigrated(dir string, m migrated) []corev1.Pod {
	ctx := context.Background()
	_, err := cluster.Kubectl(ctx, "apply", "--namespace="+s.name, "--filename="+filepath.Join("migration", dir, m.file+".yaml"))
	require.NoError(s.t, err)
	var pods []corev1.Pod
	require.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		list, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods = list.Items
		if len(pods) != max(m.pods, 1) {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		for i := range pods {
			if err := runningOrWhy(ctx, &pods[i]); err != nil {
				return err
			}
		}
		return nil
	}))
	return pods
}

// endMigrated ends what runMigrated has made: shells that listen to no SIGTERM.
func (s *space) endMigrated() {
	ctx := context.Background()
	background, now := metav1.DeletePropagationBackground, int64(0)
	require.NoError(s.t, cluster.API.AppsV1().Deployments(s.name).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}))
	require.NoError(s.t, cluster.API.CoreV1().Pods(s.name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	s.empty()
	require.NoError(s.t, harness.Until(ctx, patience, unused))
}

func testMigration(t *testing.T, dir string, all []migrated) {
	withImage(t)
	files, err := filepath.Glob(filepath.Join("migration", dir, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, len(all), "each file is tested")
	models := map[string]string{}
	memory := map[string]int64{}
	status, err := cluster.Status(context.Background())
	require.NoError(t, err)
	for i, c := range status.GPUs {
		memory[c.UUID] = c.MemoryMiB
		models[c.UUID] = "H200"
		if i >= 6 {
			models[c.UUID] = "A100"
		}
	}
	s := newSpace(t)
	for _, m := range all {
		t.Run(m.file, func(t *testing.T) {
			s := s.in(t)
			defer s.endMigrated()
			pods := s.runMigrated(dir, m)
			for i := range pods {
				shares, devices := placed(t, &pods[i])["main"], s.devices(&pods[i], "main")
				require.Len(t, devices, len(m.want))
				for j, d := range devices {
					want := m.want[j]
					if want < 0 {
						want = -want * memory[d.uuid] / 100
					}
					require.Equal(t, device{shares[j].UUID, want}, d)
					require.Equal(t, m.cores, shares[j].CorePercent)
					require.True(t, strings.Contains(models[d.uuid], m.model), "%s is not of model %s", d.uuid, m.model)
				}
			}
			if m.check != nil {
				m.check(t, pods)
			}
		})
	}
}

// Pods that were written for HAMi run unchanged, where the operator lets pods request priority as HAMi does.
func TestMigrationFromHAMi(t *testing.T) {
	withAgent(t, "nvidia.com/gpu", 80, "--requested-priority-namespaces=*")
	testMigration(t, "hami", fromHAMi)
}

// Pods that were written for gpu-manager run unchanged on nodes of its profile.
func TestMigrationFromGPUManager(t *testing.T) {
	withAgent(t, "tencent.com/vcuda-core", 800, "--resource-profile=tencent")
	testMigration(t, "gpu-manager", fromGPUManager)
}

func runningOrWhy(ctx context.Context, p *corev1.Pod) error {
	if err := kube.Running(p); err != nil {
		return fmt.Errorf("pod %s: %w\n%s", p.Name, err, cluster.Events(ctx, p.Namespace, p.Name))
	}
	return nil
}
