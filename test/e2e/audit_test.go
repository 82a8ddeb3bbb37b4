//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/monitor/audit/podevents"
	"github.com/gpuslice/gpuslice/test/harness"
)

// withChart upgrades the release to further settings until the test ends.
func withChart(t *testing.T, settings ...string) {
	ctx := context.Background()
	t.Cleanup(func() {
		require.NoError(t, cluster.InstallChart(ctx))
		waitOffered(t, "nvidia.com/gpu", 80)
	})
	var sets []string
	for _, s := range settings {
		sets = append(sets, "--set="+s)
	}
	require.NoError(t, cluster.InstallChart(ctx, sets...))
	waitOffered(t, "nvidia.com/gpu", 80)
}

// cheater is a pod of a user other than root, with a program that takes more of a GPU than it was granted: it
// finds the driver's functions by reading the tables of a copy, in front of which there is no limiter.
func cheater(t *testing.T, name string) *corev1.Pod {
	dir, err := os.MkdirTemp(cluster.Dir, "cheat")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	driver, err := harness.Artefact("sim", "libcuda.so.1")
	require.NoError(t, err)
	data, err := os.ReadFile(driver)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "innocent.so"), data, 0o755))
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-o", filepath.Join(dir, "cheat"), "../node/testdata/cheat.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)

	p := pod(name, container("main", gpu(2000, 10)))
	main(p).Command = []string{"/opt/cheat/cheat", "/opt/cheat/innocent.so", "elf", "5000"}
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	withHostPath(func() string { return dir }, "/opt/cheat")(p)
	withSecurity(func(c *corev1.SecurityContext) { c.RunAsUser = ref(int64(65534)) })(p)
	return p
}

// The agent has the rights that the chart gives it for on-violation=kill, and no others. It ends a container
// that takes more than its grant by a way around the limiter, and the pod's events state the reason. The
// other container on the GPU continues.
func TestAuditKills(t *testing.T) {
	withChart(t, "agent.config.on-violation=kill", "agent.config.audit-interval=1s", "agent.config.violation-grace=1s")
	s := newSpace(t)
	gpu := map[string]string{"nvidia.com/use-gpuuuid": gpus(t)[0]}
	neighbour, cheat := job("neighbour"), cheater(t, "cheat")
	neighbour.Annotations, cheat.Annotations = gpu, gpu
	s.run(neighbour)
	made := s.create(cheat)

	ended := s.wait("cheat", func(p *corev1.Pod) error {
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Terminated == nil {
			return errors.New("it has not ended")
		}
		return nil
	})
	says, err := cluster.Logs(ended, "main")
	require.NoError(t, err)
	const killed = 128 + 9
	require.EqualValues(t, killed, ended.Status.ContainerStatuses[0].State.Terminated.ExitCode, says)
	require.Contains(t, says, "ready=1", "it had what it took")
	for _, reason := range []string{"GPUMemoryOverLimit", "GPUProcessKilled"} {
		require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
			events, err := cluster.API.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
			if err != nil {
				return err
			}
			if len(events.Items) == 0 {
				return fmt.Errorf("there is no event %s\n%s", reason, cluster.Events(ctx, s.name, "cheat"))
			}
			for _, e := range events.Items {
				assert.Equal(t, corev1.EventTypeWarning, e.Type)
				assert.Equal(t, podevents.Component, e.Source.Component)
				assert.Equal(t, made.UID, e.InvolvedObject.UID, "no other pod is reported")
				assert.Equal(t, "spec.containers{main}", e.InvolvedObject.FieldPath)
			}
			return nil
		}))
	}
	s.requireGoesOn("neighbour")
}
