package plugin

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// A scheduler that no longer leads evicts nothing.
func TestFormerLeaderDoesNotEvict(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	var parted atomic.Bool
	w := newWorldWith(t, preempts, func(p *Plugin) {
		leads := p.takeover
		p.takeover = func() *kube.Takeover {
			if parted.Load() {
				return &kube.Takeover{Fence: fence.Follow(p.client, "ns", "lease", func(string) bool { return false })}
			}
			return leads()
		}
	}, append(objects(pods...), n1)...)
	deleted := w.deletions()
	for _, name := range []string{"low-0", "low-1"} {
		deleted.fail(name, apierrors.NewForbidden(v1.Resource("pods"), name, fmt.Errorf("a policy")))
		w.bind(t, gpuPod(name, 60000, 0), "n1")
	}
	_, nominated := w.try(t, pods[0], n1)
	require.Equal(t, "n1", nominated)
	parted.Store(true)
	for _, name := range []string{"low-0", "low-1"} {
		deleted.fail(name, nil)
	}
	w.evictAll(t.Context())
	require.Empty(t, deleted.sorted())
	parted.Store(false)
	deleted.are(t, "low-0", "low-1")
}

// An eviction failed after others of the same group, and then the plan ended: one pod of that group went on.
func TestVictimGroupIsEvictedWhole(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	deleted := w.deletions()
	deleted.fail("v-1", apierrors.NewInternalError(fmt.Errorf("lost")))
	for _, pod := range gangOf("v", 2) {
		w.bind(t, pod, "n1")
	}
	_, nominated := w.try(t, pods[0], n1)
	require.Equal(t, "n1", nominated)
	deleted.are(t, "v-0")
	require.NoError(t, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "g-0"))
	require.Eventually(t, func() bool { return !w.keeps("g") }, time.Minute, time.Millisecond, "the plan ends with its group")
	deleted.fail("v-1", nil)
	deleted.are(t, "v-0", "v-1")
}

// reserve creates the pod and reserves GPUs for it, as before its Binding. It returns the pod after that.
func (w *world) reserve(t *testing.T, pod *v1.Pod, node string) *v1.Pod {
	t.Helper()
	_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	w.known(t, pod)
	return w.placed(t, pod.DeepCopy(), node)
}

// A pod of a victim group was being bound, and stayed without the others.
func TestVictimGroupIsBeingBound(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 2, 1), gpuNode("n2", 1, 3)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	victims := gangOf("v", 2)
	w.bind(t, gpuPod("low", 60000, 0), "n1")
	w.bind(t, victims[0], "n1")
	w.reserve(t, victims[1], "n2")
	_, nominated := w.try(t, pods[0], n1, n2)
	require.Equal(t, "n1", nominated)
	deleted.are(t, "low", "v-0", "v-1")
}

// A search found no victims, because they were being bound. No event retried the group after that.
func TestSearchAfterBindings(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	deleted := w.deletions()
	low := []*v1.Pod{w.reserve(t, gpuPod("low-0", 60000, 0), "n1"), w.reserve(t, gpuPod("low-1", 60000, 0), "n1")}
	_, nominated := w.try(t, pods[0], n1)
	require.Empty(t, nominated)
	for _, pod := range low {
		require.NoError(t, w.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "ns"))
	}
	require.Eventually(t, func() bool {
		w.confirm()
		w.plans.mu.Lock()
		defer w.plans.mu.Unlock()
		return len(w.plans.fruitless) == 0
	}, time.Minute, time.Millisecond)
	_, nominated = w.try(t, pods[1], n1)
	require.Equal(t, "n1", nominated)
	deleted.are(t, "low-0", "low-1")
}

// A victim group got another pod, and one that is too important.
func TestVictimGroupChanges(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 2, 1), gpuNode("n2", 1, 3)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	for _, name := range []string{"v-0", "v-1"} {
		deleted.fail(name, apierrors.NewForbidden(v1.Resource("pods"), name, fmt.Errorf("a policy")))
	}
	for _, pod := range gangOf("v", 2) {
		w.bind(t, pod, "n1")
	}
	w.bind(t, prioritized(gpuPod("high", 60000, 0), 9), "n2")
	_, nominated := w.try(t, pods[0], n1, n2)
	require.Equal(t, "n1", nominated)
	more := prioritized(member(plainPod("v-2"), "v", 2), 7)
	more.Spec.NodeName = "n2"
	_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), more, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !w.keeps("g") }, time.Minute, time.Millisecond, "it may not be evicted any more")
	for _, name := range []string{"v-0", "v-1"} {
		deleted.fail(name, nil)
	}
	w.confirm()
	w.evictAll(t.Context())
	require.Empty(t, deleted.sorted())
}

func TestPlanEnds(t *testing.T) {
	for name, end := range map[string]func(w *world, pods []*v1.Pod, now *time.Time){
		"time is up": func(w *world, _ []*v1.Pod, now *time.Time) {
			w.plans.mu.Lock()
			defer w.plans.mu.Unlock()
			*now = now.Add(planTime + time.Second)
		},
		"a GPU is gone": func(w *world, _ []*v1.Pod, _ *time.Time) { w.engine.SetNode(convert.Node(gpuNode("n1", 1, 1))) },
		"a node takes no pods": func(w *world, _ []*v1.Pod, _ *time.Time) {
			node := gpuNode("n1", 2, 1)
			node.Spec.Unschedulable = true
			_, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			require.NoError(t, err)
		},
		"a pod of the group is gone": func(w *world, pods []*v1.Pod, _ *time.Time) {
			require.NoError(t, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", pods[1].Name))
		},
		"a more important pod takes the room": func(w *world, _ []*v1.Pod, _ *time.Time) {
			w.engine.DeletePod("uid-low")
			_, err := w.engine.Reserve(convert.Pod(prioritized(gpuPod("high", 60000, 0), 9)), w.request(t, gpuPod("high", 60000, 0)), "n1", "test")
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
			now := time.Unix(1_800_000_000, 0)
			w := newWorldWith(t, preempts, func(p *Plugin) { p.plans.clock = func() time.Time { return now } }, append(objects(pods...), n1)...)
			deleted := w.deletions()
			w.bind(t, gpuPod("low", 60000, 0), "n1")
			w.bind(t, gpuPod("low-too", 60000, 0), "n1")
			_, nominated := w.try(t, pods[0], n1)
			require.Equal(t, "n1", nominated)
			deleted.are(t, "low", "low-too")
			other := gpuPod("other", 60000, 0)
			w.try(t, other, n1)
			w.took()
			end(w, pods, &now)
			require.Eventually(t, func() bool { return !w.keeps("g") }, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return slices.Contains(w.took(), "other") }, time.Minute, time.Millisecond,
				"pods that left the room are tried again")
		})
	}
}

// Evictions went on after the group was deleted.
func TestEvictionsEndWithTheGroup(t *testing.T) {
	pods, n1, n2 := preempting("g", 20, 5), gpuNode("n1", 10, 1), gpuNode("n2", 10, 11)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	for i := range 20 {
		w.bind(t, gpuPod(fmt.Sprintf("low-%02d", i), 60000, 0), []string{"n1", "n2"}[i/10])
	}
	var once sync.Once
	w.client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		once.Do(func() {
			for _, pod := range pods {
				require.NoError(t, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", pod.Name))
			}
			require.Eventually(t, func() bool { return len(w.groups.named(gang.Name{Namespace: "ns", Name: "g"}).Pending) == 0 },
				time.Minute, time.Millisecond)
		})
		return false, nil, nil
	})
	_, nominated := w.try(t, pods[0], n1, n2)
	require.NotEmpty(t, nominated)
	require.Eventually(t, func() bool { return !w.keeps("g") && len(deleted.sorted()) > 0 }, time.Minute, time.Millisecond)
	require.Len(t, deleted.sorted(), 1)
}

// A plan without evictions was made again and again: a free GPU was never used.
func TestRoomIsNotKeptForEver(t *testing.T) {
	pods, n1 := preempting("g", 2, 0), gpuNode("n1", 2, 1)
	now := time.Unix(1_800_000_000, 0)
	w := newWorldWith(t, preempts, func(p *Plugin) { p.plans.clock = func() time.Time { return now } }, append(objects(pods...), n1)...)
	low, deletion := gpuPod("low", 60000, 0), metav1.Now()
	low.DeletionTimestamp, low.Finalizers = &deletion, []string{"example.com/wait"}
	w.bind(t, low, "n1")
	// Its first pod has the free GPU, and the second one fails.
	try := func() (nominated string) {
		w.engine.DeletePod(string(pods[0].UID))
		_, err := w.engine.Reserve(convert.Pod(pods[0]), w.request(t, pods[0]), "n1", "test")
		require.NoError(t, err)
		fits, nominated := w.try(t, pods[1], n1)
		require.Empty(t, fits)
		w.engine.DeletePod(string(pods[0].UID))
		return nominated
	}
	require.Equal(t, "n1", try())
	fits, _ := w.try(t, gpuPod("other", 60000, 0), n1)
	require.Empty(t, fits)
	w.plans.mu.Lock()
	now = now.Add(planTime + time.Second)
	w.plans.mu.Unlock()
	require.Eventually(t, func() bool { return !w.keeps("g") }, time.Minute, time.Millisecond)
	require.Empty(t, try())
	fits, _ = w.try(t, gpuPod("other", 60000, 0), n1)
	require.Equal(t, "n1", fits)
}
