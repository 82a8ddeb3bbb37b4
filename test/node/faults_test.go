//go:build root

package node_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// requireNoUnlimitedGPU checks that a container that was created all the same has
// no GPU: neither in its spec nor for a program in it.
func requireNoUnlimitedGPU(t testing.TB, n *harness.Node, s *harness.Sandbox, c harness.Container) {
	id, err := s.Start(context.Background(), c)
	if err != nil {
		return // refused
	}
	_, _, code, err := n.Exec(context.Background(), id, workload("meminfo"))
	require.NoError(t, err)
	require.Equal(t, 4, code, "no driver")
	for _, d := range spec(t, n, id).Linux.Devices {
		require.NotContains(t, d.Path, "nvidia")
	}
}

// The agent is not there, hangs, or dies: no container gets a GPU past it.
func TestAgentThatIsNotThere(t *testing.T) {
	n := newNode(t, harness.NodeOptions{Containerd: harness.ContainerdOptions{RequestTimeout: time.Second}})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	kinds := []harness.Container{{Name: "main"}, {Name: "main", Image: harness.GreedyImage}}
	layers, _ := supportRow(t, n)
	attempt := uint32(0)
	try := func(t *testing.T) {
		for i, c := range kinds {
			pod := run(t, n, harness.Pod{Name: fmt.Sprintf("p%d-%d", attempt, i), Annotations: hami(uuid, 1000, 10)})
			requireNoUnlimitedGPU(t, n, pod, c)
			require.NoError(t, pod.Remove(ctx))
		}
		attempt++
	}
	t.Run("stopped by SIGSTOP", func(t *testing.T) {
		pod := run(t, n, harness.Pod{Name: "stopped", Annotations: hami(uuid, 1000, 10)})
		require.NoError(t, n.Agent.Suspend(ctx))
		_, err := pod.Create(ctx, harness.Container{Name: "main", Image: harness.GreedyImage})
		require.Equal(t, layers[validates], err != nil, "%s: %v", validates, err)
		try(t)
		require.NoError(t, n.Agent.Signal(syscall.SIGCONT))
		// The agent is ready again only after it has noticed that it was disconnected. Its health can't show
		// that before.
		next := uint32(0)
		require.NoError(t, harness.Until(ctx, time.Minute, func(ctx context.Context) error {
			next++
			id, err := pod.Start(ctx, harness.Container{Name: "main", Attempt: next})
			if err != nil {
				return err
			}
			_, stderr, code, err := n.Exec(ctx, id, workload("meminfo"))
			if err == nil && code != 0 {
				err = errors.New(stderr)
			}
			return err
		}))
		require.NoError(t, pod.Remove(ctx))
	})
	t.Run("killed", func(t *testing.T) {
		n.Agent.Kill()
		try(t)
		require.NoError(t, n.StartAgent(ctx))
	})
	requireNothingLeft(t, n)
}

// The agent's ledger is right again after each of its deaths, with containers that
// came, went and stayed meanwhile.
func TestAgentRestart(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	stays, goes := harness.Pod{Name: "stays", Annotations: hami(uuid, 70000, 50)}, harness.Pod{Name: "goes", Annotations: hami(uuid, 70000, 50)}
	staysPod, goesPod := run(t, n, stays), run(t, n, goes)
	hold := harness.Container{Name: "main", Command: []string{workload("hold"), "--mib=50"}}
	staysID := start(t, staysPod, hold)
	start(t, goesPod, hold)
	waitReady(t, staysPod, hold)

	n.Agent.Kill()
	require.NoError(t, goesPod.Remove(ctx))
	require.NoError(t, n.StartAgent(ctx))

	s, err := n.Status(ctx)
	require.NoError(t, err)
	require.Len(t, s.Containers, 1)
	require.Equal(t, staysID, s.Containers[0].ContainerID)
	require.Equal(t, uint64((50+contextMiB)*mib), s.Containers[0].Shares[0].UsedBytes, "its accounting went on")
	v := exec(t, n, staysID, workload("meminfo"))
	require.Equal(t, int64(70000*mib), number(t, v["device.0.total_bytes"]))

	next := run(t, n, harness.Pod{Name: "next", Annotations: hami(uuid, 70000, 50)})
	start(t, next, harness.Container{Name: "main"})
	_, err = run(t, n, harness.Pod{Name: "late", Annotations: hami(uuid, 70000, 0)}).Start(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, uuid)
}

// The state directory is lost under running containers: their claims come back.
func TestLostStateDir(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	pod := run(t, n, harness.Pod{Name: "p", Annotations: hami(uuid, 70000, 50)})
	id := start(t, pod, harness.Container{Name: "main"})
	require.NoError(t, n.Agent.Stop(harness.StopPatience))
	require.NoError(t, harness.LoseClaims(n.StateDir()))
	require.NoError(t, n.StartAgent(ctx))

	s, err := n.Status(ctx)
	require.NoError(t, err)
	require.Len(t, s.Containers, 1)
	require.Equal(t, int64(70000), s.GPUs[0].GrantedMemoryMiB)
	v := exec(t, n, id, workload("alloc"), "--chunk-mib=1000")
	require.Equal(t, int64(69000*mib), number(t, v["allocated_bytes"]), "the container still has its limit: a context and 69 chunks")
	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, n)
}

// containerd restarts: containers go on, the agent connects again, and what ended
// meanwhile is given back.
func TestContainerdRestart(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	stays := harness.Container{Name: "main", Command: []string{workload("hold"), "--mib=50"}}
	staysPod := run(t, n, harness.Pod{Name: "stays", Annotations: hami(uuid, 3000, 10)})
	staysID := start(t, staysPod, stays)
	waitReady(t, staysPod, stays)
	goesPod := run(t, n, harness.Pod{Name: "goes", Annotations: hami(uuid, 1000, 10)})
	goesID := start(t, goesPod, harness.Container{Name: "main"})

	n.Containerd.Kill()
	require.NoError(t, harness.Until(ctx, time.Minute, func(ctx context.Context) error {
		if n.Health(ctx, "/readyz") == nil {
			return errors.New("the agent is ready on a node without a runtime")
		}
		return nil
	}))
	// It ends while no agent listens, and no event of it is ever sent.
	require.NoError(t, harness.KillContainer(n.Containerd, goesID))
	require.NoError(t, n.Containerd.Start(ctx))
	require.NoError(t, n.WaitConnected(ctx))
	require.Equal(t, int64(3000*mib), number(t, exec(t, n, staysID, workload("meminfo"))["device.0.total_bytes"]))
	s, err := n.Status(ctx)
	require.NoError(t, err)
	require.Len(t, s.Containers, 1, "what ended meanwhile is given back")
	require.Equal(t, staysID, s.Containers[0].ContainerID)
	require.NoError(t, goesPod.Remove(ctx))
	require.NoError(t, staysPod.Remove(ctx))
	requireNothingLeft(t, n)
}
