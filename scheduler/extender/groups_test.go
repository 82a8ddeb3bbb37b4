package extender

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// A label of coscheduling without a minimum placed a part of the group, and an incomplete group kept GPUs.
func TestIncompleteGroupReservesNothing(t *testing.T) {
	w := newWorld(t, 1, 4)
	node, why := w.place(pod("a-0", 81920, 100, func(p *v1.Pod) { p.Labels = map[string]string{api.LabelGroup: "a"} }))
	require.Empty(t, node)
	require.Contains(t, why, "it is not known how many pods must be scheduled together")

	first := pod("b-0", 81920, 100, grouped("b", 2))
	node, why = w.place(first)
	require.Empty(t, node)
	require.Contains(t, why, "group default/b has 1 of the 2 pods that must be scheduled together")
	require.Empty(t, w.engine.AllocatedNode(string(first.UID)))
	second := pod("b-1", 81920, 100, grouped("b", 2))
	w.cluster.add(second)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go w.server.Run(ctx)
	w.server.podChanged(second)
	require.Eventually(t, func() bool {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return len(w.cluster.requeued) == 2
	}, time.Minute, time.Millisecond, "both are retried")
}

// A group may have more pods than its minimum, and all may be known before the first of their events is handled.
func TestLargeGroupIsRetriedOnce(t *testing.T) {
	w := newWorld(t, 1, 4)
	var pods []*v1.Pod
	for _, name := range []string{"a-0", "a-1", "a-2"} {
		p := pod(name, 1024, 0, grouped("a", 2))
		w.cluster.add(p)
		pods = append(pods, p)
	}
	for range 2 {
		for _, p := range pods {
			w.server.podChanged(p)
		}
	}
	require.Len(t, w.server.requeuer.queue, 3)
	w.cluster.remove("a-1", "a-2")
	w.server.podChanged(pods[2])
	require.Empty(t, w.server.groups.complete)
	w.cluster.add(pods[1])
	w.server.podChanged(pods[1])
	require.Len(t, w.server.requeuer.queue, 5, "it became complete again")
}

type found gang.Spec

func (f found) Find(gang.Name) (gang.Spec, error) { return gang.Spec(f), nil }

func TestPodGroup(t *testing.T) {
	w := newWorld(t, 1, 4)
	w.cluster.minimums = found{Minimum: 2}
	in := func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationVolcanoGroup: "g"} }
	a, b := pod("a", 81920, 100, in), pod("b", 81920, 100, in)
	_, why := w.place(a)
	require.Contains(t, why, "has 1 of the 2 pods")
	w.cluster.add(b)
	var g errgroup.Group
	for _, p := range []*v1.Pod{a, b} {
		g.Go(func() error {
			if node, why := w.place(p); node == "" {
				return fmt.Errorf("%s", why)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// 10 groups of 3 for 4 GPUs, all at once: each gets its GPUs, one after the other, although no timeout ends a wait. No
// group is ever bound in part while another runs.
func TestGroupsCompete(t *testing.T) {
	w := newWorld(t, 1, 4, func(o *Options) { o.GroupTimeout = time.Hour })
	var pods [][]*v1.Pod
	for n := range 10 {
		var group []*v1.Pod
		for i := range 3 {
			p := pod(fmt.Sprintf("g%d-%d", n, i), 81920, 100, grouped(fmt.Sprintf("g%d", n), 3))
			p.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000+n%3), 0)) // some are equally old
			group = append(group, p)
			w.cluster.add(p)
		}
		pods = append(pods, group)
	}
	var all errgroup.Group
	var mu sync.Mutex
	running := 0
	for _, group := range pods {
		all.Go(func() error {
			var one errgroup.Group
			for _, p := range group {
				one.Go(func() error {
					for { // kube-scheduler's retries
						if node, _ := w.place(p); node != "" {
							return nil
						}
						if t.Context().Err() != nil {
							return t.Context().Err()
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			if err := one.Wait(); err != nil {
				return err
			}
			mu.Lock()
			running++
			assert.Equal(t, 1, running, "4 GPUs have room for one group")
			running--
			for _, p := range group {
				w.cluster.remove(p.Name)
			}
			mu.Unlock()
			return nil
		})
	}
	require.NoError(t, all.Wait())
	require.Empty(t, w.audit())
}

func TestGroupTopology(t *testing.T) {
	w := newWorld(t, 4, 1, func(o *Options) { o.GroupTopology = []string{"rack"} })
	for i, name := range w.nodes {
		w.engine.SetNode(&scheduler.Node{Name: name, Labels: map[string]string{"rack": []string{"a", "b", "b", "a"}[i]},
			Annotations: map[string]string{"gpuslice.io/node-gpus": register(i, 1)}})
	}
	// Rack a has room for one more only: node-00 is in use.
	other := pod("other", 81920, 100)
	w.cluster.add(other)
	require.Empty(t, w.bind(other, "node-00"))
	for name, change := range map[string]func(*v1.Pod){
		"preferred": func(*v1.Pod) {},
		"required":  func(p *v1.Pod) { p.Annotations[api.AnnotationGroupTopology] = "rack" },
	} {
		t.Run(name, func(t *testing.T) {
			pods := []*v1.Pod{pod(name+"-0", 81920, 100, grouped(name, 2), change), pod(name+"-1", 81920, 100, grouped(name, 2), change)}
			for _, p := range pods {
				w.cluster.add(p)
			}
			var g errgroup.Group
			var mu sync.Mutex
			at := map[string]bool{}
			for _, p := range pods {
				g.Go(func() error {
					node, why := w.place(p)
					if node == "" {
						return fmt.Errorf("%s", why)
					}
					mu.Lock()
					defer mu.Unlock()
					at[node] = true
					return nil
				})
			}
			require.NoError(t, g.Wait())
			require.Equal(t, map[string]bool{"node-01": true, "node-02": true}, maps.Clone(at))
			w.cluster.remove(pods[0].Name, pods[1].Name)
		})
	}
	// Nowhere is room for three in one rack.
	var pods []*v1.Pod
	for i := range 3 {
		pods = append(pods, pod(fmt.Sprintf("large-%d", i), 81920, 100, grouped("large", 3),
			func(p *v1.Pod) { p.Annotations[api.AnnotationGroupTopology] = "rack" }))
		w.cluster.add(pods[i])
	}
	_, why := w.place(pods[0])
	require.Contains(t, why, "group default/large: no value of the node label rack has nodes on which all of its 3 pods fit")
}
