//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// churn deletes pods of a namespace, one after another in no order, until it is stopped;
// their Deployment makes them again. Errors of an API server that is unreachable are no matter.
func (s *space) churn(seed uint64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	random := rand.New(rand.NewPCG(seed, 0))
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
			if err == nil && len(pods.Items) > 0 {
				_ = cluster.API.CoreV1().Pods(s.name).Delete(ctx, pods.Items[random.IntN(len(pods.Items))].Name, metav1.DeleteOptions{})
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// Whatever is restarted while pods come and go on a full node: in the end all of them
// run within their limits, none was taken back by the kubelet, and at no time was more
// granted of a GPU than it has (reservations).
func TestRestartsUnderLoad(t *testing.T) {
	s := newSpace(t)
	const memoryMiB, cores = 16000, 20
	s.deploy(40, pod("load", container("main", gpu(memoryMiB, cores))))
	s.waitRunning("load", 40)
	for i, restart := range append(slices.Clone(restarts), schedulerRestarts...) {
		t.Run(restart.name, func(t *testing.T) {
			s := s.in(t)
			stop := s.churn(uint64(i))
			defer stop()
			began := time.Now()
			require.NoError(t, restart.do(context.Background()))
			require.NoError(t, cluster.WaitNode(context.Background()))
			stop()
			pods := s.waitSettled("load", 40)
			t.Logf("all run again %.1f s after it began", time.Since(began).Seconds())
			s.requireAllHeld(pods, memoryMiB)
		})
	}
}

// requireAllHeld checks that the containers of these pods, and no others, have GPUs by
// their specs and by the ledger, and asks one on each GPU what it sees.
func (s *space) requireAllHeld(pods []corev1.Pod, memoryMiB int64) {
	held, err := cluster.Held(context.Background())
	require.NoError(s.t, err)
	reserved, err := cluster.Reserved(context.Background())
	require.NoError(s.t, err)
	require.Equal(s.t, held, reserved, "the ledger is what the containers have")
	seen := map[string]bool{}
	for i := range pods {
		uuid := placed(s.t, &pods[i])["main"][0].UUID
		if seen[uuid] {
			continue
		}
		seen[uuid] = true
		require.Equal(s.t, []device{{uuid, memoryMiB}}, s.devices(&pods[i], "main"))
	}
	require.Len(s.t, seen, 8)
}

// waitSettled waits until so many pods of an app run, and the node has no other container with a GPU.
func (s *space) waitSettled(app string, want int) []corev1.Pod {
	var pods []corev1.Pod
	require.NoError(s.t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		pods = s.waitRunning(app, want)
		held, err := cluster.Held(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			id := strings.TrimPrefix(pods[i].Status.ContainerStatuses[0].ContainerID, "containerd://")
			if _, holds := held[id]; !holds {
				return fmt.Errorf("container %s of pod %s has no GPU", id, pods[i].Name)
			}
		}
		if len(held) != want {
			return fmt.Errorf("%d containers have GPUs", len(held))
		}
		return nil
	}))
	return pods
}
