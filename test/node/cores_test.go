//go:build root

package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Two containers that both want all of a GPU divide its time by their shares: beside the agent, for a minute after it was killed, and
// when another has started; also one that was created before, and one that came after.
func TestSharesOfComputeTime(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	shares := map[int]int{}
	busy := func(cores int) *harness.Sandbox {
		pod := run(t, n, harness.Pod{Name: fmt.Sprint("has-", cores), Annotations: hami(uuid, 8000, cores)})
		start(t, pod, harness.Container{Name: "main", Command: harness.Busy, Env: []string{harness.BusyEnv(cores)}})
		shares[cores] = cores
		return pod
	}
	first, second := busy(30), busy(70)
	require.NoError(t, n.HoldShares(ctx, 0, shares, 5), "with the agent")

	n.Agent.Kill()
	killed, err := n.GPUTime(ctx, 0)
	require.NoError(t, err)
	require.NoError(t, n.HoldShares(ctx, 0, shares, 5), "right after the agent was killed")
	require.NoError(t, harness.Until(ctx, 5*time.Minute, func(ctx context.Context) error {
		now, err := n.GPUTime(ctx, 0)
		if err == nil && now.Clock < killed.Clock+uint64(time.Minute) {
			err = fmt.Errorf("the GPU's clock has moved by %v", time.Duration(now.Clock-killed.Clock))
		}
		if err == nil {
			t.Logf("in the minute without an agent they had %.1f and %.1f %%", now.Percent(killed, 30), now.Percent(killed, 70))
		}
		return err
	}))
	require.NoError(t, n.HoldShares(ctx, 0, shares, 5), "a minute after the agent was killed")

	require.NoError(t, n.StartAgent(ctx))
	require.NoError(t, n.HoldShares(ctx, 0, shares, 5), "with the next agent")
	require.NoError(t, second.Remove(ctx))
	delete(shares, 70)
	last := busy(20)
	require.NoError(t, n.HoldShares(ctx, 0, map[int]int{30: 60, 20: 40}, 5), "what no container has is for all, by their shares")
	require.NoError(t, first.Remove(ctx))
	require.NoError(t, last.Remove(ctx))
	requireNothingLeft(t, n)
}

// A container with a ceiling, the only one on its GPU, uses more than its share and no more than the ceiling, by gpu-manager's name and
// by ours.
func TestCeiling(t *testing.T) {
	const share, ceiling, within = 30, 60, 5
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)
	for group, key := range []string{"tencent.com/vcuda-core-limit", "gpuslice.io/core-ceiling"} {
		group++ // 0 is for programs without a group
		annotations := hami(uuid, 8000, share)
		annotations[key] = fmt.Sprint(ceiling)
		pod := run(t, n, harness.Pod{Name: fmt.Sprint("elastic-", group), Annotations: annotations})
		start(t, pod, harness.Container{Name: "main", Command: harness.Busy, Env: []string{harness.BusyEnv(group)}})
		var had []float64
		require.NoError(t, harness.Until(ctx, 5*time.Minute, func(ctx context.Context) error {
			percent, err := percentOf(ctx, n, group)
			if err != nil {
				return err
			}
			require.LessOrEqual(t, percent, float64(ceiling+within), key)
			if had = append(had, percent); len(had) < 3 || percent < share+2*within {
				return fmt.Errorf("%s: it has had %.1f %%", key, had)
			}
			return nil
		}))
		t.Logf("%s: %.1f %%", key, had)
		require.NoError(t, pod.Remove(ctx))
	}
	requireNothingLeft(t, n)
}

// percentOf is what a group has of three seconds of the first GPU's clock.
func percentOf(ctx context.Context, n *harness.Node, group int) (float64, error) {
	if err := harness.BusyPrograms(); err != nil {
		return 0, err
	}
	from, err := n.GPUTime(ctx, 0)
	if err != nil || from.Busy[group] == 0 {
		return 0, fmt.Errorf("group %d has not begun: %w", group, err)
	}
	var to harness.GPUTime
	err = harness.Until(ctx, time.Minute, func(ctx context.Context) (err error) {
		if to, err = n.GPUTime(ctx, 0); err == nil && to.Clock < from.Clock+uint64(3*time.Second) {
			err = fmt.Errorf("the GPU's clock is at %v", time.Duration(to.Clock-from.Clock))
		}
		return err
	})
	return to.Percent(from, group), err
}
