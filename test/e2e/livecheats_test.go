//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/test/kube"
)

// A container that is added to a running pod has no GPU, with any spec, and can't take the GPU of the other.
func TestEphemeralContainer(t *testing.T) {
	s := newSpace(t)
	p := s.run(pod("p", container("main", gpu(cheatMiB, cheatCores))))
	debugger := container("debugger", nil)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		TargetContainerName: "main",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: debugger.Name, Image: debugger.Image, ImagePullPolicy: debugger.ImagePullPolicy, Command: debugger.Command,
			Env: []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}},
		},
	}}
	_, err := cluster.API.CoreV1().Pods(s.name).UpdateEphemeralContainers(context.Background(), p.Name, p, metav1.UpdateOptions{})
	require.NoError(t, err)
	p = s.wait(p.Name, func(p *corev1.Pod) error {
		for _, status := range p.Status.EphemeralContainerStatuses {
			if status.State.Running != nil {
				return nil
			}
		}
		return errors.New("the debugger does not run")
	})
	require.Empty(t, s.devices(p, "debugger"))
	s.requireNoWayToGPU(p, "debugger")
	s.requireHeld(p, "main", cheatMiB)
}

// A container that sees another's files through its processes can't open its GPU.
func TestSharedProcesses(t *testing.T) {
	s := newSpace(t)
	p := pod("p", container("main", gpu(cheatMiB, cheatCores)), container("spy", nil))
	p.Spec.ShareProcessNamespace = ref(true)
	p = s.run(p)
	require.Empty(t, s.devices(p, "spy"))
	s.requireNoWayToGPU(p, "spy")
	s.requireHeld(p, "main", cheatMiB)
}

// requireNoWayToGPU finds a GPU's node through the processes that a container sees, and
// tries to open it.
func (s *space) requireNoWayToGPU(p *corev1.Pod, container string) {
	stdout, stderr, code, err := cluster.ExecIn(context.Background(), p, container, "/bin/sh", "-c",
		`for node in /proc/[0-9]*/root/dev/nvidia0; do [ -e $node ] && found=$node; done; echo found=$found; cat $found`)
	require.NoError(s.t, err)
	require.NotZero(s.t, code)
	require.Contains(s.t, stdout, "/root/dev/nvidia0", "the attempt was made")
	require.Contains(s.t, stderr, "not permitted")
}

// What a container was given stays what it is when it ends and is started again.
func TestContainerThatRestarts(t *testing.T) {
	s := newSpace(t)
	p := s.run(pod("p", container("main", gpu(cheatMiB, cheatCores))))
	_, _, _, err := cluster.ExecIn(context.Background(), p, "main", "/bin/sh", "-c", "kill 1")
	require.NoError(t, err)
	p = s.wait(p.Name, func(p *corev1.Pod) error {
		if n := p.Status.ContainerStatuses[0].RestartCount; n == 0 {
			return fmt.Errorf("it was restarted %d times", n)
		}
		return kube.Running(p)
	})
	s.requireHeld(p, "main", cheatMiB)
}

// What is granted can't be changed by way of Kubernetes' resizing of pods in place.
func TestResize(t *testing.T) {
	s := newSpace(t)
	p := s.run(pod("p", container("main", gpu(cheatMiB, cheatCores))))
	for _, subresource := range [][]string{nil, {"resize"}} {
		_, err := cluster.API.CoreV1().Pods(s.name).Patch(context.Background(), p.Name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"main","resources":{"limits":{"nvidia.com/gpumem":"100000"},"requests":{"nvidia.com/gpumem":"100000"}}}]}}`),
			metav1.PatchOptions{}, subresource...)
		if subresource != nil && !has(t, kube.Resize) {
			require.True(t, apierrors.IsNotFound(err), err)
		} else {
			require.ErrorContains(t, err, "orbidden")
		}
	}
	s.requireHeld(p, "main", cheatMiB)
}
