//go:build root

package node_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

// spoil has a container write into its usage file, again and again: noise over all that
// its limiter accounts, noise over the whole file, the largest numbers, nothing.
const spoil = `i=0; while true; do
/bin/busybox dd if=/dev/urandom of=/.gpuslice/usage bs=1024 seek=1 count=1283 conv=notrunc 2>/dev/null
/bin/busybox dd if=/dev/urandom of=/.gpuslice/usage bs=1024 count=1284 conv=notrunc 2>/dev/null
/bin/busybox tr '\000' '\377' </dev/zero | /bin/busybox dd of=/.gpuslice/usage bs=1024 seek=2 count=1282 conv=notrunc 2>/dev/null
: >/.gpuslice/usage
i=$((i+1)); echo rounds=$i; done`

// Only the operator's setting decides which container goes first. A tenant that claims priority, and
// writes anything into its usage file, changes neither its own nor others' priority, nor any limits.
func TestPriorityIsNotTheTenants(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--high-priority-namespaces=vip"}})
	uuid := gpu(t, n, 0)
	spin := workload("spin") + " --seconds=1000 --kernels-us=5000 --mode=async"
	containers := map[string]string{}
	pods := map[string]*harness.Sandbox{}
	for _, c := range []struct{ name, namespace, line string }{
		{"first", "vip", spin},
		{"second", "", spin},
		{"spoiler", "", spin + " & sleep 1\n" + spoil}, // its own program may be refused: it lies to itself
	} {
		pods[c.name] = run(t, n, harness.Pod{Name: c.name, Namespace: c.namespace, Annotations: hami(uuid, 4000, 30)})
		containers[c.name] = start(t, pods[c.name], harness.Container{Name: "main", Command: []string{"/bin/sh", "-c", c.line},
			Env: []string{"CUDA_TASK_PRIORITY=0", "GPU_CORE_UTILIZATION_POLICY=DISABLE"}})
	}
	read := func(name string) (limiter.Limits, uint64) {
		path := limiter.LimitsPath(filepath.Join(n.StateDir(), "containers", containers[name]))
		l, err := limiter.ReadLimits(path)
		require.NoError(t, err)
		l.Generation = 0 // rises with what the host has seen
		residue, err := limiter.ReadResidue(path)
		require.NoError(t, err)
		return l, residue[0]
	}
	granted := map[string]limiter.Limits{}
	for name, priority := range map[string]limiter.Priority{"first": limiter.PriorityHigh, "second": limiter.PriorityLow, "spoiler": limiter.PriorityLow} {
		granted[name], _ = read(name)
		require.Equal(t, priority, granted[name].Devices[0].Priority, name)
		require.EqualValues(t, 4000*mib, granted[name].Devices[0].MemoryLimitBytes, name)
		require.EqualValues(t, 30, granted[name].Devices[0].CorePercent, name)
	}
	table, err := limiter.ReadTable(limiter.TablePath(n.StateDir(), uuid))
	require.NoError(t, err)
	require.Len(t, table.Shares, len(granted))
	require.NoError(t, harness.Until(ctx, 60*time.Second, func(context.Context) error {
		now, err := limiter.ReadTable(limiter.TablePath(n.StateDir(), uuid))
		require.NoError(t, err)
		require.Equal(t, table, now)
		for name := range containers {
			l, residue := read(name)
			require.Equal(t, granted[name], l, name)
			for _, s := range now.Shares {
				if s.ID == l.TurnID {
					require.Equal(t, l.Devices[0].Priority, s.Priority, name)
				}
			}
			if name != "spoiler" {
				require.Zero(t, residue, "%s has charged what it has", name)
			}
		}
		says, err := pods["spoiler"].Logs(harness.Container{Name: "main"})
		if rounds := harness.KeyValues(says)["rounds"]; err != nil || len(rounds) < 2 {
			return fmt.Errorf("the spoiler has spoilt %q times; its output is %q: %w", rounds, says, err)
		}
		return nil
	}))
	for _, p := range pods {
		require.NoError(t, p.Remove(ctx))
	}
	requireNothingLeft(t, n)
}

// A container of low priority gets on beside one of high priority.
func TestPriorityLeavesTheRest(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--high-priority-namespaces=vip"}})
	uuid := gpu(t, n, 0)
	spin := []string{workload("spin"), "--seconds=1000", "--kernels-us=2000", "--mode=async"}
	first := run(t, n, harness.Pod{Name: "first", Namespace: "vip", Annotations: hami(uuid, 4000, 30)})
	firstID := start(t, first, harness.Container{Name: "main", Command: spin})
	second := run(t, n, harness.Pod{Name: "second", Annotations: hami(uuid, 4000, 40)})
	secondID := start(t, second, harness.Container{Name: "main", Command: spin})
	launches := func(id string) (uint64, error) {
		usage, err := limiter.ReadCoreUsage(limiter.UsagePath(filepath.Join(n.StateDir(), "containers", id)))
		if err != nil {
			return 0, err
		}
		return usage[0].Launches, nil
	}
	var hadFirst, hadSecond uint64
	require.NoError(t, harness.Until(ctx, 90*time.Second, func(context.Context) (err error) {
		if hadFirst, err = launches(firstID); err != nil || hadFirst == 0 {
			return fmt.Errorf("the first has not begun: %w", err)
		}
		hadSecond, err = launches(secondID)
		return err
	}))
	require.NoError(t, harness.Until(ctx, 90*time.Second, func(context.Context) error {
		hasFirst, err := launches(firstID)
		hasSecond, errSecond := launches(secondID)
		if err = errors.Join(err, errSecond); err == nil && (hasFirst < hadFirst+100 || hasSecond < hadSecond+10) {
			err = fmt.Errorf("the first has made %d launches, the second %d", hasFirst-hadFirst, hasSecond-hadSecond)
		}
		return err
	}))
	require.NoError(t, first.Remove(ctx))
	require.NoError(t, second.Remove(ctx))
}

// An elastic limit of gpu-manager's, and ours, reaches the container's limiter: the share stays what was granted.
func TestCeilingReachesTheLimiter(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	for key, ceiling := range map[string]string{"tencent.com/vcuda-core-limit": "70", "gpuslice.io/core-ceiling": "80", "": "0"} {
		annotations := hami(uuid, 4000, 30)
		if key != "" {
			annotations[key] = ceiling
		}
		pod := run(t, n, harness.Pod{Name: "elastic-" + ceiling, Annotations: annotations})
		id := start(t, pod, harness.Container{Name: "main", Command: []string{"/bin/busybox", "sleep", "1000"}})
		l, err := limiter.ReadLimits(limiter.LimitsPath(filepath.Join(n.StateDir(), "containers", id)))
		require.NoError(t, err)
		require.EqualValues(t, 30, l.Devices[0].CorePercent, key)
		require.Equal(t, ceiling, fmt.Sprint(l.Devices[0].CoreSoftPercent), key)
		require.NoError(t, pod.Remove(t.Context()))
	}
	requireNothingLeft(t, n)
}
