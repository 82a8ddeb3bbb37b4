package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Docker's containers are in the node's ledger only. A scheduler that does not count them sends pods to their GPUs, where
// the node refuses each of them.
func TestContainersThatNoSchedulerPlaced(t *testing.T) {
	e := newEngine(t, Options{})
	others := scheduler.Use{MemoryMiB: 60000, Cores: 80, Replicas: 2}
	shared := h100(0, 0)
	shared.Others = others
	e.SetNode(nodeOf("docker", shared))
	e.SetNode(nodeOf("empty", h100(1, 0)))
	verdict := func(p *scheduler.Pod, node string) Verdict {
		return e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict(node)
	}
	large, whole := podOf("u1", "1/40000/0"), podOf("u2", "1/1000/100")
	refused := verdict(large, "docker")
	require.False(t, refused.Fits)
	require.Contains(t, refused.Text(), "20000 MiB")
	require.True(t, verdict(large, "empty").Fits)
	exclusive := verdict(whole, "docker")
	require.False(t, exclusive.Fits, "others are on the GPU")
	_, err := e.Reserve(large, requestOf(t, e, large), "docker", "test")
	require.ErrorIs(t, err, ErrNoFit)

	small := podOf("u3", "1/20000/20")
	e.SetPod(place(t, e, small, "docker"))
	require.Equal(t, others.Add(scheduler.Use{MemoryMiB: 20000, Cores: 20, Replicas: 1}), used(e, "docker", 0))
	require.Empty(t, e.State("").Problems)

	t.Run("they end", func(t *testing.T) {
		e.SetNode(nodeOf("docker", h100(0, 0)))
		require.Equal(t, scheduler.Use{MemoryMiB: 20000, Cores: 20, Replicas: 1}, used(e, "docker", 0))
		require.True(t, verdict(large, "docker").Fits)
	})
	t.Run("they come where pods are", func(t *testing.T) {
		e.SetNode(nodeOf("docker", shared))
		require.Equal(t, others.Add(scheduler.Use{MemoryMiB: 20000, Cores: 20, Replicas: 1}), used(e, "docker", 0))
		e.DeletePod("u3")
		require.Equal(t, others, used(e, "docker", 0))
		e.DeleteNode("docker")
		e.SetNode(nodeOf("docker", shared))
		require.Equal(t, others, used(e, "docker", 0))
	})
}
