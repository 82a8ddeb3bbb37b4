//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// waiting makes a pod that has to wait for memory.
func (s *space) waiting(name string, ask resources, uuids ...string) {
	p := pod(name, container("main", ask))
	p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": strings.Join(uuids, ",")}
	s.create(p)
	came, _, says := s.cameOf(name)
	require.Equal(s.t, unscheduled, came)
	require.Contains(s.t, says, "less than 100000 MiB free")
}

// `defrag` makes room for a pod that waits for memory that is free, but on several GPUs: the plan changes nothing, and
// then it is carried out.
func TestDefrag(t *testing.T) {
	s := newSpace(t)
	all := gpus(t)
	t.Run("moves", func(t *testing.T) {
		s, two := s.in(t), all[:2]
		p := pod("app", container("main", gpu(60000, 10)))
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": strings.Join(two, ",")}
		s.deploy(2, p)
		has, uids := map[string]bool{}, map[string]bool{}
		for _, p := range s.waitRunning("app", 2) {
			has[uuids(placed(t, &p)["main"])[0]], uids[string(p.UID)] = true, true
		}
		require.Len(t, has, 2, "spread is the policy for GPUs")
		s.waiting("large", gpu(100000, 10), two...)

		plan, err := kubectlGPUSlice(t, "defrag", s.name+"/large", "--plan")
		require.NoError(t, err)
		require.Contains(t, plan, "app-")
		for _, p := range s.waitRunning("app", 2) {
			require.True(t, uids[string(p.UID)], "the plan changes nothing")
		}
		_, err = kubectlGPUSlice(t, "defrag", s.name+"/large", "--yes")
		require.NoError(t, err)
		s.requireHeld(s.wait("large", kube.Running), "main", 100000)
		has = map[string]bool{}
		left := 0
		for _, p := range s.waitRunning("app", 2) {
			has[uuids(placed(t, &p)["main"])[0]] = true
			if uids[string(p.UID)] {
				left++
			}
		}
		require.Len(t, has, 1)
		require.Equal(t, 1, left, "one pod was moved")
		node, err := cluster.API.CoreV1().Nodes().Get(context.Background(), harness.NodeName, metav1.GetOptions{})
		require.NoError(t, err)
		require.Empty(t, node.Annotations["hami.io/device-cordon"])
		require.Empty(t, node.Annotations["gpuslice.io/defrag-cordon"])
		s.empty()
	})
	t.Run("resizes", func(t *testing.T) {
		s, one := s.in(t), all[2]
		p := pod("shrinks", container("main", gpu(60000, 10)))
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": one, "gpuslice.io/min-memory": "20000"}
		p = s.run(p)
		s.waiting("large", gpu(100000, 10), one)
		_, err := kubectlGPUSlice(t, "defrag", s.name+"/large", "--yes")
		require.NoError(t, err)
		s.requireHeld(s.wait("large", kube.Running), "main", 100000)
		now := s.wait("shrinks", kube.Running)
		require.Equal(t, p.Status.ContainerStatuses[0].ContainerID, now.Status.ContainerStatuses[0].ContainerID)
		require.NoError(t, harness.Until(context.Background(), patience, func(context.Context) error {
			if has := s.devices(now, "main")[0].totalMiB; has < 20000 || has > gpuMiB-100000 {
				return fmt.Errorf("it has %d MiB", has)
			}
			return nil
		}))
		s.empty()
	})
	t.Run("no plan", func(t *testing.T) {
		s, one := s.in(t), all[3]
		p := pod("only", container("main", gpu(60000, 10)))
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": one}
		p = s.run(p)
		s.waiting("large", gpu(100000, 10), one)
		_, err := kubectlGPUSlice(t, "defrag", s.name+"/large", "--yes")
		require.Error(t, err)
		require.Equal(t, p.UID, s.wait("only", kube.Running).UID, "a pod without a controller stays")
		s.empty()
	})
}
