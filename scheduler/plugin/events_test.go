package plugin

import (
	"slices"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

func TestHints(t *testing.T) {
	w := newWorld(t, "")
	events, err := w.EventsToRegister(t.Context())
	require.NoError(t, err)
	hint := func(resource fwk.EventResource, action fwk.ActionType) fwk.QueueingHintFn {
		for _, e := range events {
			if e.Event.Resource == resource && e.Event.ActionType&action != 0 {
				return e.QueueingHintFn
			}
		}
		t.Fatalf("%s %v is not registered", resource, action)
		return nil
	}
	refused, hopeless := gpuPod("p", 1000, 0), gpuPod("p", 0, 150)
	fixed := gpuPod("p", 1000, 0)
	fixed.Annotations = map[string]string{"nvidia.com/use-gputype": "H100"}
	started := gpuPod("p", 1000, 0)
	started.Status.Phase = v1.PodRunning
	cordoned := gpuNode("n", 1, 1)
	cordoned.Annotations[api.AnnotationHAMiCordon] = gpu(1)
	beating := gpuNode("n", 1, 1)
	beating.Annotations["hami.io/node-handshake"] = "Requesting_"
	relabeled := gpuNode("n", 1, 1)
	relabeled.Labels = map[string]string{"x": "y"}
	var nothing any
	for _, tc := range []struct {
		name     string
		hint     fwk.QueueingHintFn
		pod      *v1.Pod
		old, now any
		want     fwk.QueueingHint
	}{
		{"a pod with GPUs is gone", hint(fwk.Pod, fwk.Delete), refused, gpuPod("other", 1, 0), nothing, fwk.Queue},
		{"a pod with a grant is gone", hint(fwk.Pod, fwk.Delete), refused, with(plainPod("other"), func(p *v1.Pod) {
			p.Annotations = map[string]string{api.AnnotationGrant: "x"}
		}), nothing, fwk.Queue},
		{"a pod without GPUs is gone", hint(fwk.Pod, fwk.Delete), refused, plainPod("other"), nothing, fwk.QueueSkip},
		{"a pod with GPUs is gone, for a pod that nothing helps", hint(fwk.Pod, fwk.Delete), hopeless, gpuPod("other", 1, 0), nothing, fwk.QueueSkip},
		{"the pod's annotations change", hint(fwk.Pod, fwk.UpdatePodLabel), hopeless, refused, fixed, fwk.Queue},
		{"the pod's status changes", hint(fwk.Pod, fwk.UpdatePodLabel), refused, refused, started, fwk.QueueSkip},
		{"another pod changes", hint(fwk.Pod, fwk.UpdatePodLabel), refused, gpuPod("q", 1, 0), fixed2("q"), fwk.QueueSkip},
		{"a node with GPUs comes", hint(fwk.Node, fwk.Add), refused, nothing, gpuNode("n", 1, 1), fwk.Queue},
		{"a node with GPUs comes, for a pod that nothing helps", hint(fwk.Node, fwk.Add), hopeless, nothing, gpuNode("n", 1, 1), fwk.QueueSkip},
		{"a node without GPUs comes", hint(fwk.Node, fwk.Add), refused, nothing, &v1.Node{}, fwk.QueueSkip},
		{"a node gets its GPUs", hint(fwk.Node, fwk.UpdateNodeAnnotation), refused, &v1.Node{}, gpuNode("n", 1, 1), fwk.Queue},
		{"a GPU is uncordoned", hint(fwk.Node, fwk.UpdateNodeAnnotation), refused, cordoned, gpuNode("n", 1, 1), fwk.Queue},
		{"HAMi's handshake", hint(fwk.Node, fwk.UpdateNodeAnnotation), refused, gpuNode("n", 1, 1), beating, fwk.QueueSkip},
		{"labels that no quota goes by", hint(fwk.Node, fwk.UpdateNodeLabel), refused, gpuNode("n", 1, 1), relabeled, fwk.QueueSkip},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.hint(klog.Background(), tc.pod, tc.old, tc.now)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func fixed2(name string) *v1.Pod {
	pod := gpuPod(name, 1, 0)
	pod.Annotations = map[string]string{"x": "y"}
	return pod
}

// kube-scheduler hears of a deleted pod, tries the next one, and the engine has not heard yet.
func TestInformerSync(t *testing.T) {
	other := gpuPod("other", 60000, 0)
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	other = w.placed(t, other, "n1")
	info := &nodeInfo{node: gpuNode("n1", 1, 1), generation: 1, pods: []*v1.Pod{other}}
	pods := w.factory.Core().V1().Pods().Informer().GetStore()
	require.NoError(t, pods.Add(other)) // no event

	pod := gpuPod("p", 60000, 0)
	_, status := w.PreFilter(t.Context(), w.state, pod, []fwk.NodeInfo{info})
	require.True(t, status.IsSuccess())
	require.Equal(t, fwk.Unschedulable, w.filter(t, w.state, pod, "n1"))

	require.NoError(t, pods.Delete(other)) // no event
	info.pods, info.generation = nil, 2
	w.state = newState()
	_, status = w.PreFilter(t.Context(), w.state, pod, []fwk.NodeInfo{info})
	require.True(t, status.IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n1"))

	// The same for a node's GPUs.
	nodes := w.factory.Core().V1().Nodes().Informer().GetStore()
	cordoned := gpuNode("n1", 1, 1)
	cordoned.Annotations[api.AnnotationHAMiCordon] = gpu(1)
	require.NoError(t, nodes.Update(cordoned))
	info.node, info.generation = cordoned, 3
	w.state = newState()
	_, status = w.PreFilter(t.Context(), w.state, pod, []fwk.NodeInfo{info})
	require.True(t, status.IsSuccess())
	require.Equal(t, fwk.UnschedulableAndUnresolvable, w.filter(t, w.state, pod, "n1"))
}

// The same for a pod that was placed since: no cycle has seen it on its node.
func TestInformerSyncReserved(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	info := &nodeInfo{node: gpuNode("n1", 1, 1), generation: 1}
	first := gpuPod("first", 60000, 0)
	_, status := w.PreFilter(t.Context(), w.state, first, []fwk.NodeInfo{info})
	require.True(t, status.IsSuccess())
	require.True(t, w.Reserve(t.Context(), w.state, first, "n1").IsSuccess())
	w.placed(t, first, "n1") // it is bound, and the engine hears of it; then it is gone, of which it doesn't
	info.generation = 2
	pod := gpuPod("p", 60000, 0)
	w.state = newState()
	_, status = w.PreFilter(t.Context(), w.state, pod, []fwk.NodeInfo{info})
	require.True(t, status.IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n1"))
}

func TestInformerSyncForgetsNodes(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1), gpuNode("n2", 1, 2))
	a, b := &nodeInfo{node: gpuNode("n1", 1, 1), generation: 1}, &nodeInfo{node: gpuNode("n2", 1, 2), generation: 2}
	w.informerSync.update([]fwk.NodeInfo{a, b, &nodeInfo{}})
	require.Len(t, w.informerSync.nodes, 2)
	w.informerSync.update([]fwk.NodeInfo{b, a}) // another order
	require.Len(t, w.informerSync.nodes, 2)
	w.informerSync.update([]fwk.NodeInfo{b})
	require.Len(t, w.informerSync.nodes, 1)
	require.Equal(t, "n2", w.informerSync.order[0].name)
}

func TestQuotaIsRaised(t *testing.T) {
	limit := func(mib string) *v1.ResourceQuota {
		return &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
			Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{"limits.nvidia.com/gpumem": resource.MustParse(mib)}}}
	}
	w := newWorld(t, "", gpuNode("n1", 1, 1), limit("500"))
	pod := gpuPod("p", 1000, 0)
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.NotEqual(t, fwk.Success, w.filter(t, w.state, pod, "n1"))
	_, status := w.PostFilter(t.Context(), w.state, pod, nil)
	require.Contains(t, status.Message(), "quota")

	_, err := w.client.CoreV1().ResourceQuotas("ns").Update(t.Context(), limit("2k"), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.took()) == 1 }, time.Minute, time.Millisecond, "it is tried again")
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n1"))
	w.quotaQueue.mu.Lock()
	defer w.quotaQueue.mu.Unlock()
	require.Empty(t, w.quotaQueue.pods)
}

func TestQuotaIsRaisedDuringCycle(t *testing.T) {
	sink := func(w *world) quotaSink { return quotaSink{w.engine, w.quotaQueue} }
	for name, tc := range map[string]struct {
		change func(w *world)
		again  []string
	}{
		"its own":         {func(w *world) { sink(w).DeleteQuota("ns", "q") }, []string{"p"}},
		"gpu-manager's":   {func(w *world) { sink(w).SetGPUQuota(nil) }, []string{"p"}},
		"another's":       {func(w *world) { sink(w).DeleteQuota("other", "q") }, nil},
		"nothing changed": {func(*world) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", gpuNode("n1", 1, 1))
			w.engine.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 500, Cores: quota.Unlimited}})
			pod := gpuPod("p", 1000, 0)
			require.True(t, w.preFilter(t, pod).IsSuccess())
			tc.change(w)
			w.PostFilter(t.Context(), w.state, pod, nil)
			require.Equal(t, tc.again, w.took())
		})
	}
}

func TestProfilesShareState(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	f := &Factory{shared: w.shared, args: w.args}
	second, err := f.New(t.Context(), nil, w.handle)
	require.NoError(t, err)
	require.Same(t, w.engine, second.(*Plugin).engine)
	_, err = f.New(t.Context(), &runtime.Unknown{Raw: []byte(patching)}, w.handle)
	require.ErrorContains(t, err, "use the same args")
}

// Labels of nodes count in a node selector and in a group's topology.
func TestNodeLabelsChange(t *testing.T) {
	old, now := gpuNode("n1", 1, 1), gpuNode("n1", 1, 1)
	now.Labels = map[string]string{"rack": "a"}
	alone, grouped, asks := gpuPod("p", 1000, 0), member(gpuPod("g", 1000, 0), "g", 2), member(gpuPod("t", 1000, 0), "t", 2)
	asks.Annotations[api.AnnotationGroupTopology] = "rack"
	for args, queued := range map[string][]*v1.Pod{
		"": {asks},
		`{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupTopology":["rack"]}`:    {grouped, asks},
		`{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","nodeSelector":{"rack":"a"}}`: {alone, grouped, asks},
	} {
		w := newWorld(t, args)
		for _, pod := range []*v1.Pod{alone, grouped, asks} {
			hint, err := w.afterNode(klog.Background(), pod, old, now)
			require.NoError(t, err)
			require.Equal(t, slices.Contains(queued, pod), hint == fwk.Queue, "%s: %s", args, pod.Name)
		}
	}
}
