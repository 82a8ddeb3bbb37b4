//go:build root

package node_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// benchRounds is how many containers of each kind one operation of the benchmark makes.
const benchRounds = 200

// BenchmarkContainerCreate is what gpuslice adds to CRI's CreateContainer on a real
// containerd: for a container with a grant, for one without, and for one of a
// containerd without NRI. The three take turns, so that what else the machine does
// meets them alike; the ratios are to the last.
func BenchmarkContainerCreate(b *testing.B) {
	ctx := context.Background()
	withPlugin := newNode(b, harness.NodeOptions{})
	bare := newNode(b, harness.NodeOptions{Containerd: harness.ContainerdOptions{DisableNRI: true}, NoAgent: true})

	kinds := []*struct {
		name        string
		node        *harness.Node
		annotations map[string]string
		took        []time.Duration
	}{
		{name: "granted", node: withPlugin, annotations: hami(gpu(b, withPlugin, 0), 1000, 5)},
		{name: "ungranted", node: withPlugin},
		{name: "bare", node: bare},
	}
	pods := make([]*harness.Sandbox, len(kinds))
	for i, k := range kinds {
		pods[i] = run(b, k.node, harness.Pod{Name: k.name, Annotations: k.annotations})
		createAndRemove(ctx, b, k.node, pods[i], 0) // the first one warms up
	}
	attempt := 0
	for b.Loop() {
		for range benchRounds {
			attempt++
			for turn := range kinds {
				i := (attempt + turn) % len(kinds)
				kinds[i].took = append(kinds[i].took, createAndRemove(ctx, b, kinds[i].node, pods[i], attempt))
			}
		}
	}
	b.ReportMetric(0, "ns/op") // it would count the removals too
	for _, percent := range []int{50, 99} {
		without := percentile(kinds[2].took, percent)
		for _, k := range kinds {
			ms := percentile(k.took, percent)
			b.ReportMetric(ms, fmt.Sprintf("%s-p%d-ms", k.name, percent))
			if k.node != bare {
				b.ReportMetric(ms/without, fmt.Sprintf("%s-p%d-ratio", k.name, percent))
			}
		}
	}
	for _, p := range pods {
		require.NoError(b, p.Remove(ctx))
	}
	requireNothingLeft(b, withPlugin)
}

// BenchmarkResourceClaim is a container's way to its GPU by a ResourceClaim, Prepare by the agent and then CRI's CreateContainer
// with the CDI device, beside CreateContainer with a scheduler's grant. Both take turns; added is the difference.
func BenchmarkResourceClaim(b *testing.B) {
	ctx := context.Background()
	granting := newNode(b, harness.NodeOptions{})
	claiming, claims := newDRANode(b)
	granted := run(b, granting, harness.Pod{Name: "granted", Annotations: hami(gpu(b, granting, 0), 1000, 5)})
	claimed := run(b, claiming, harness.Pod{Name: "claimed"})
	uuid := gpu(b, claiming, 0)
	claims.allocate("first", uuid, "1000Mi", "5")
	claims.prepared("first") // the driver is there
	claims.unprepare("first")
	createAndRemove(ctx, b, granting, granted, 0)
	var byGrant, byClaim, prepare []time.Duration
	attempt := 0
	for b.Loop() {
		for range benchRounds {
			attempt++
			byGrant = append(byGrant, createAndRemove(ctx, b, granting, granted, attempt))
			name := fmt.Sprint("c", attempt)
			claims.allocate(name, uuid, "1000Mi", "5")
			began := time.Now()
			devices, err := claims.prepare(ctx, name)
			prepare = append(prepare, time.Since(began))
			require.NoError(b, err)
			id, err := claimed.Create(ctx, harness.Container{Name: "main", Attempt: uint32(attempt), CDIDevices: devices})
			byClaim = append(byClaim, time.Since(began))
			require.NoError(b, err)
			require.NoError(b, claiming.RemoveContainer(ctx, id))
			claims.unprepare(name)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, percent := range []int{50, 99} {
		of := func(name string, times []time.Duration) float64 {
			ms := percentile(times, percent)
			b.ReportMetric(ms, fmt.Sprintf("%s-p%d-ms", name, percent))
			return ms
		}
		of("prepare", prepare)
		b.ReportMetric(of("claimed", byClaim)-of("granted", byGrant), fmt.Sprintf("added-p%d-ms", percent))
	}
	require.NoError(b, granted.Remove(ctx))
	require.NoError(b, claimed.Remove(ctx))
	requireNothingLeft(b, granting)
	requireNothingLeft(b, claiming)
}

// createAndRemove makes a container and removes it, and returns how long the creation took.
func createAndRemove(ctx context.Context, b *testing.B, n *harness.Node, pod *harness.Sandbox, attempt int) time.Duration {
	start := time.Now()
	id, err := pod.Create(ctx, harness.Container{Name: "main", Attempt: uint32(attempt)})
	took := time.Since(start)
	require.NoError(b, err)
	require.NoError(b, n.RemoveContainer(ctx, id))
	return took
}

// percentile is a percentile in milliseconds.
func percentile(times []time.Duration, percent int) float64 {
	times = slices.Sorted(slices.Values(times))
	return float64(times[len(times)*percent/100].Microseconds()) / 1e3
}
