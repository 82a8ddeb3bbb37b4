//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// patchNode is a merge patch of the node.
func patchNode(t *testing.T, patch string) {
	_, err := cluster.API.CoreV1().Nodes().Patch(context.Background(), harness.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	assert.NoError(t, err)
}

// selectNodes sets the agents' nodeSelector, or removes it (null).
func selectNodes(t *testing.T, selector string) {
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":%s}}}}`, selector)
	_, err := cluster.API.AppsV1().DaemonSets(kube.Namespace).Patch(context.Background(), kube.Release+"-agent", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	assert.NoError(t, err)
}

// podsOfHAMi waits until so many pods run of what stands for HAMi's device plugin.
func podsOfHAMi(t *testing.T, namespace string, want int) {
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		pods, err := cluster.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=hami"})
		if err != nil {
			return err
		}
		if len(pods.Items) != want {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		for i := range pods.Items {
			if err := kube.Running(&pods.Items[i]); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A node is switched from HAMi's DaemonSet, which offers nothing here, to the agents, and on the way back it is switched again, because
// HAMi's GPUs are not offered.
func TestMigrationOfANode(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t)
	plugin := pod("hami", container("device-plugin", nil)).Spec
	plugin.NodeSelector = map[string]string{"gpu": "on"}
	plugin.Containers[0].Command = append(plugin.Containers[0].Command, "nvidia-device-plugin") // the name of HAMi's program
	labels := map[string]string{"app": "hami"}
	_, err := cluster.API.AppsV1().DaemonSets(s.name).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "hami-device-plugin", Labels: map[string]string{"app.kubernetes.io/component": "hami-device-plugin"}},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: plugin,
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, cluster.API.AppsV1().DaemonSets(s.name).Delete(ctx, "hami-device-plugin", metav1.DeleteOptions{}))
		patchNode(t, `{"metadata":{"labels":{"gpu":null,"gpuslice.io/migrated":null},"annotations":{"gpuslice.io/migration":null}},"spec":{"unschedulable":null}}`)
		selectNodes(t, "null")
		assert.NoError(t, cluster.WaitNode(ctx))
	})
	patchNode(t, `{"metadata":{"labels":{"gpu":"on"}}}`)
	s.deploy(1, pod("app", container("main", gpu(3000, 10))))
	first := s.waitRunning("app", 1)[0]
	podsOfHAMi(t, s.name, 1)

	out, err := kubectlGPUSlice(t, "migrate", "hami", "--node", harness.NodeName, "--yes")
	require.ErrorContains(t, err, "does not select its nodes by gpuslice.io/migrated=true", out)
	selectNodes(t, `{"gpuslice.io/migrated":"true"}`)
	out, err = kubectlGPUSlice(t, "migrate", "hami", "-o", "jsonpath={.nodes[*].state} {.nodes[*].pods[*].name}")
	require.NoError(t, err)
	require.Equal(t, "served "+s.name+"/"+first.Name, out)

	_, err = kubectlGPUSlice(t, "migrate", "hami", "--node", harness.NodeName, "--yes")
	require.NoError(t, err)
	podsOfHAMi(t, s.name, 0)
	second := s.waitRunning("app", 1)[0]
	require.NotEqual(t, first.UID, second.UID)
	s.requireHeld(&second, "main", 3000)
	node, err := cluster.API.CoreV1().Nodes().Get(ctx, harness.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	require.False(t, node.Spec.Unschedulable)
	require.NotContains(t, node.Labels, "gpu")

	out, err = kubectlGPUSlice(t, "migrate", "hami", "--all", "--undo", "--yes", "--timeout", "30s")
	require.ErrorContains(t, err, "does not offer nvidia.com/gpu", out)
	podsOfHAMi(t, s.name, 1)
	// A node on the way back is not switched with all others.
	out, err = kubectlGPUSlice(t, "migrate", "hami", "--all", "--yes")
	require.NoError(t, err, out)
	require.Contains(t, out, "there is no node to switch")
	_, err = kubectlGPUSlice(t, "migrate", "hami", "--node", harness.NodeName, "--yes")
	require.NoError(t, err)
	last := s.waitRunning("app", 1)[0]
	s.requireHeld(&last, "main", 3000)
}
