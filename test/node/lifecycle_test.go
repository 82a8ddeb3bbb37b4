//go:build root

package node_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// kind is one way to ask for a GPU, and what comes of it.
type kind struct {
	description string
	annotations func(uuid string) map[string]string
	image       string
	limitMiB    int64 // 0: no GPU
	refused     bool
}

var kinds = []kind{
	{"HAMi's grant", func(u string) map[string]string { return hami(u, 1000, 5) }, harness.WorkloadImage, 1000, false},
	{"our grant", func(u string) map[string]string { return named(map[string]string{"main": share(u, 2000, 0)}) }, harness.GreedyImage, 2000, false},
	{"no grant", func(string) map[string]string { return nil }, harness.WorkloadImage, 0, false},
	{"no grant, a greedy image", func(string) map[string]string { return nil }, harness.GreedyImage, 0, false},
	{"a grant for another container", func(u string) map[string]string { return named(map[string]string{"other": share(u, 2000, 0)}) }, harness.GreedyImage, 0, false},
	{"more than the GPU", func(u string) map[string]string { return hami(u, 143772, 5) }, harness.GreedyImage, 0, true},
	{"an unknown GPU", func(string) map[string]string { return hami("GPU-ffffffff-5151-4000-8000-000000000001", 1, 1) }, harness.GreedyImage, 0, true},
	{"malformed", func(u string) map[string]string { return hami(u, -1, 5) }, harness.GreedyImage, 0, true},
}

// lifecycles counts no containers that are refused. `make soak` runs 1,000.
var lifecycles = flag.Int("lifecycles", 200, "create and remove `N` containers in TestManyContainers")

// Containers of all kinds, several at a time: each has its limits or no GPU at all, by its spec and by what it reports, and
// none leaves anything behind.
func TestManyContainers(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	ctx := context.Background()
	uuid := gpu(t, n, 0)

	var (
		mu     sync.Mutex
		count  = map[string]int{}
		next   int // pods begun
		made   int // containers that are created, of the pods begun
		wg     sync.WaitGroup
		failed = func() bool { return t.Failed() }
	)
	for worker := range 4 {
		wg.Go(func() {
			for pods := 0; !failed(); pods++ {
				mu.Lock()
				if made >= *lifecycles {
					mu.Unlock()
					return
				}
				k := kinds[next%len(kinds)]
				next++
				if !k.refused {
					made += attempts
				}
				mu.Unlock()
				if err := lifecycle(ctx, n, k, k.annotations(uuid), fmt.Sprintf("w%d-%d", worker, pods)); !assert.NoError(t, err, k.description) {
					return
				}
				mu.Lock()
				count[k.description] += attempts
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("containers by kind: %v", count)
	requireNothingLeft(t, n)
	left, err := os.ReadDir(n.Containerd.Bundles())
	require.NoError(t, err)
	require.Empty(t, left)
	state, err := n.Simctl(ctx, "status", "-o", "json")
	require.NoError(t, err)
	require.Contains(t, state, `"memory_used_bytes":0,`)
}

// attempts is how many containers a pod makes one after the other, as the kubelet
// does with one that fails: the next before the last is removed.
const attempts = 4

// lifecycle runs one pod through its attempts and removes it.
func lifecycle(ctx context.Context, n *harness.Node, k kind, annotations map[string]string, name string) error {
	pod, err := n.RunPod(ctx, harness.Pod{Name: name, Annotations: annotations})
	if err != nil {
		return err
	}
	var last string
	for attempt := range attempts {
		c := harness.Container{Name: "main", Attempt: uint32(attempt), Image: k.image, Command: []string{workload("meminfo")}}
		id, err := pod.Create(ctx, c)
		if k.refused {
			if err == nil {
				return fmt.Errorf("container %s was created", id)
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := n.StartContainer(ctx, id); err != nil {
			return err
		}
		spec, err := n.Spec(ctx, id)
		if err != nil {
			return err
		}
		limited, err := harness.LimitedOrNone(spec, n.StateDir())
		if err != nil || limited != (k.limitMiB > 0) {
			return fmt.Errorf("limited: %v, %w", limited, err)
		}
		code, err := n.WaitExit(ctx, id, time.Minute)
		if err != nil {
			return err
		}
		log, err := pod.Logs(c)
		if err != nil {
			return err
		}
		switch v := harness.KeyValues(log); {
		case k.limitMiB == 0 && code != 4:
			return fmt.Errorf("a container without a grant found a driver: %d, %s", code, log)
		case k.limitMiB > 0 && (code != 0 || v["device_count"] != "1" || v["device.0.total_bytes"] != strconv.FormatInt(k.limitMiB*mib, 10)):
			return fmt.Errorf("it sees not its %d MiB: %d, %s", k.limitMiB, code, log)
		}
		if last != "" {
			if err := n.RemoveContainer(ctx, last); err != nil {
				return err
			}
		}
		last = id
	}
	return pod.Remove(ctx)
}
