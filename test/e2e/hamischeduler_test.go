//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// lockAsHAMi takes HAMi's lock of the node for a pod, as HAMi's scheduler does before it binds one: only a free lock, which it never
// releases itself.
func lockAsHAMi(t *testing.T, p *corev1.Pod) {
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		node, err := cluster.API.CoreV1().Nodes().Get(ctx, harness.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder, locked := node.Annotations[api.AnnotationHAMiLock]; locked {
			return fmt.Errorf("the node is locked: %s", holder)
		}
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"annotations":{%q:"%s,%s,%s"}}}`,
			node.ResourceVersion, api.AnnotationHAMiLock, time.Now().Format(time.RFC3339), p.Namespace, p.Name)
		_, err = cluster.API.CoreV1().Nodes().Patch(ctx, harness.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}))
}

// HAMi's scheduler places pods on a node of gpuslice, one after the other: it locks the node, writes the grant, and binds the pod. The
// agent enforces the grant, and releases the lock, which would be in the way of the next pod for five minutes. The test is the
// scheduler.
func TestHAMisScheduler(t *testing.T) {
	ctx := context.Background()
	withAgent(t, "nvidia.com/gpu", 80, "--grant-public-key-file=")
	withoutAdmission(t)
	s := newSpace(t)
	t.Cleanup(func() {
		_, err := cluster.API.CoreV1().Nodes().Patch(ctx, harness.NodeName, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, api.AnnotationHAMiLock), metav1.PatchOptions{})
		assert.NoError(t, err)
	})
	uuid := gpus(t)[2]
	for i := range 3 {
		p := pod(fmt.Sprintf("p-%d", i), container("main", gpu(3000, 30)), container("other", nil))
		p.Spec.SchedulerName = "hami-scheduler"
		p, err := cluster.API.CoreV1().Pods(s.name).Create(ctx, p, metav1.CreateOptions{})
		require.NoError(t, err)
		lockAsHAMi(t, p)
		devices, now := uuid+",NVIDIA,3000,30:;;", fmt.Sprint(time.Now().Unix())
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q,%q:%q,%q:%q,%q:%q,%q:%q,%q:%q}}}`,
			api.AnnotationHAMiNode, harness.NodeName, api.AnnotationHAMiTime, now, api.AnnotationHAMiToAllocate, devices,
			api.AnnotationHAMiAllocated, devices, api.AnnotationHAMiBindPhase, api.HAMiAllocating, api.AnnotationHAMiBindTime, now)
		_, err = cluster.API.CoreV1().Pods(s.name).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(t, err)
		require.NoError(t, cluster.API.CoreV1().Pods(s.name).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: harness.NodeName},
		}, metav1.CreateOptions{}))
		p = s.wait(p.Name, kube.Running)
		require.Equal(t, []device{{uuid, 3000}}, s.devices(p, "main"))
		require.Empty(t, s.devices(p, "other"))
		s.requireHeld(p, "main", 3000)
	}
}
