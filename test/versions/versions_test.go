//go:build e2e

package versions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// An API server before 1.34 doesn't have the APIs for which kube-scheduler 1.36 waits at its start.
func TestOlderAPIServers(t *testing.T) {
	for _, version := range []string{"1.33", "1.34", "1.35"} {
		t.Run(version, func(t *testing.T) {
			ctx := t.Context()
			c, err := kube.NewControlPlane(ctx, "--emulated-version="+version)
			t.Cleanup(func() {
				if c != nil {
					assert.NoError(t, c.Close(context.Background()))
				}
			})
			require.NoError(t, err)
			require.NoError(t, kube.CreateServiceAccount(ctx, c.API, "default"))
			require.NoError(t, kube.CreateNode(ctx, c.API, "node", 1, kube.GPUs(0, 1, 80<<10, nil)))
			kubeconfig, err := c.Kubeconfig(kube.Admin)
			require.NoError(t, err)

			text, err := kube.ShippedConfig(kube.PluginConfig).Connect(kubeconfig).NoElection().Text()
			require.NoError(t, err)
			config := filepath.Join(c.Dir, "config.yaml")
			require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
			start(t, c, "scheduler", "--config="+config, "--secure-port=0", "--debug-address=")
			pod := place(t, c)
			assert.NotEmpty(t, pod.Annotations[api.AnnotationGrant])
		})
	}
}

func start(t *testing.T, c *kube.Cluster, name string, args ...string) {
	t.Helper()
	path, err := harness.Artefact("bin", "gpuslice-scheduler")
	require.NoError(t, err)
	p, err := harness.StartProcess(c.Dir, name, nil, path, args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.LogTail(30))
		}
		assert.NoError(t, p.Stop(harness.StopPatience))
	})
}

// place returns a pod with a share after it was scheduled.
func place(t *testing.T, c *kube.Cluster) (pod *v1.Pod) {
	t.Helper()
	ctx := t.Context()
	limits := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/gpumem": resource.MustParse("8000")}
	pods := c.API.CoreV1().Pods("default")
	_, err := pods.Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: v1.PodSpec{SchedulerName: kube.Framework.SchedulerName(),
			Containers: []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Limits: limits}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, 2*time.Minute, func(ctx context.Context) (err error) {
		if pod, err = pods.Get(ctx, "pod", metav1.GetOptions{}); err == nil && pod.Spec.NodeName == "" {
			err = errors.New(fmt.Sprint(pod.Status.Conditions))
		}
		return err
	}))
	return pod
}
