//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// restart is what an operator, or a bad day, does to a node while it is at work.
type restart struct {
	name string
	do   func(ctx context.Context) error
}

// restarts are those of all but the scheduler.
var restarts = []restart{
	{"agent", func(ctx context.Context) error { return cluster.RestartAgent(ctx) }},
	{"kubelet", func(ctx context.Context) error {
		if err := cluster.Kubelet.Stop(15 * time.Second); err != nil {
			return err
		}
		return cluster.StartKubelet(ctx)
	}},
	{"kubelet, killed", func(ctx context.Context) error {
		cluster.Kubelet.Kill()
		return cluster.StartKubelet(ctx)
	}},
	{"containerd", func(ctx context.Context) error {
		cluster.Containerd.Kill()
		return cluster.Containerd.Start(ctx)
	}},
	{"API server", func(ctx context.Context) error {
		cluster.APIServer.Kill()
		return cluster.StartAPIServer(ctx)
	}},
	{"etcd", func(ctx context.Context) error {
		cluster.Etcd.Kill()
		return cluster.StartEtcd(ctx)
	}},
}

// A pod that runs goes on as it was, and the next one is held to its grant, whatever
// was restarted between the two.
func TestRestartsByHand(t *testing.T) {
	uuids := cards(t)
	for i, restart := range restarts {
		t.Run(restart.name, func(t *testing.T) {
			s := newSpace(t)
			make := func(name string) *corev1.Pod {
				p := grantedByHand(pod(name, container("main", gpu(3000, 30))), map[string]string{"main": share(uuids[i%len(uuids)], 3000, 30)})
				_, err := cluster.API.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
				require.NoError(t, err)
				return s.wait(name, kube.Running)
			}
			before := make("before")
			require.NoError(t, restart.do(context.Background()))
			s.requireHeld(before, "main", 3000)
			require.NoError(t, cluster.WaitNode(context.Background()))
			after := make("after")
			s.requireHeld(after, "main", 3000)
			again := s.wait(before.Name, kube.Running)
			require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, again.Status.ContainerStatuses[0].ContainerID, "it was not started anew")
			require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
				booked, err := cluster.Booked(ctx)
				if err == nil && len(booked) != 2 {
					err = fmt.Errorf("the ledger has %v", booked)
				}
				return err
			}))
		})
	}
}
