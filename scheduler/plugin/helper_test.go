package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// GPU is a GPU's UUID.
func gpu(n int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", n) }

// gpuNode has registered GPUs of 80000 MiB, from that number on.
func gpuNode(name string, gpus, first int) *v1.Node {
	list := []map[string]any{}
	for i := range gpus {
		list = append(list, map[string]any{"uuid": gpu(first + i), "model": "NVIDIA H100 80GB HBM3", "index": i, "memoryMiB": 80000, "cores": 100,
			"replicas": 10, "mode": "hami-core", "healthy": true})
	}
	text, err := json.Marshal(map[string]any{"version": 1, "gpus": list})
	if err != nil {
		panic(err)
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationNodeGPUs: string(text)}}}
}

// gpuPod requests a GPU with memory and cores; 0: no such request.
func gpuPod(name string, memoryMiB, cores int64) *v1.Pod {
	limits := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	if memoryMiB > 0 {
		limits["nvidia.com/gpumem"] = *resource.NewQuantity(memoryMiB, resource.DecimalSI)
	}
	if cores > 0 {
		limits["nvidia.com/gpucores"] = *resource.NewQuantity(cores, resource.DecimalSI)
	}
	pod := plainPod(name)
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: limits, Requests: limits}
	return pod
}

func plainPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(1_800_000_000, 0))},
		Spec:       v1.PodSpec{SchedulerName: "gpuslice-scheduler", Containers: []v1.Container{{Name: "main"}}},
	}
}

// member puts the pod into a group that needs so many.
func member(pod *v1.Pod, group string, least int) *v1.Pod {
	pod.Labels = map[string]string{api.LabelGroup: group}
	pod.Annotations = map[string]string{api.AnnotationGroupMin: fmt.Sprint(least)}
	return pod
}

// with changes a pod that is made in place.
func with(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(pod)
	return pod
}

// bound is the pod on the node, with what the annotations of a placement are.
func bound(pod *v1.Pod, node string, annotations map[string]string) *v1.Pod {
	pod.Spec.NodeName = node
	pod.Annotations = annotations
	return pod
}

// handle is what kube-scheduler gives a plugin, as far as this one uses it.
type handle struct {
	fwk.Handle
	client  kubernetes.Interface
	factory informers.SharedInformerFactory

	mu        sync.Mutex
	activated []string
	waiting   []*waiting
}

func (h *handle) ClientSet() kubernetes.Interface                        { return h.client }
func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }
func (h *handle) ProfileName() string                                    { return "p" }
func (h *handle) KubeConfig() *rest.Config                               { return nil }
func (h *handle) EventRecorder() events.EventRecorderLogger              { return nil }

func (h *handle) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pod := range pods {
		h.activated = append(h.activated, pod.Name)
	}
	slices.Sort(h.activated)
}

func (h *handle) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := h.activated
	h.activated = nil
	return names
}

func (h *handle) IterateOverWaitingPods(do func(fwk.WaitingPod)) {
	h.mu.Lock()
	all := slices.Clone(h.waiting)
	h.mu.Unlock()
	for _, w := range all {
		if _, done := w.is(); !done {
			do(w)
		}
	}
}

// wait has the pod wait, as kube-scheduler does after Permit.
func (h *handle) wait(pod *v1.Pod) *waiting {
	w := &waiting{pod: pod}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = append(h.waiting, w)
	return w
}

type waiting struct {
	fwk.WaitingPod
	pod *v1.Pod
	// allowed: it does not wait any more, and kube-scheduler still lists it.
	allowed bool

	mu       sync.Mutex
	done     bool
	rejected string
}

func (w *waiting) GetPod() *v1.Pod { return w.pod }
func (w *waiting) Allow(string)    { w.end("") }
func (w *waiting) Reject(_, why string) bool {
	return w.end(why)
}

func (w *waiting) end(why string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || w.allowed {
		return false
	}
	w.done, w.rejected = true, why
	return true
}

// is why it was rejected, and whether anything was decided.
func (w *waiting) is() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rejected, w.done
}

// cycleState is kube-scheduler's, of one pod.
type cycleState struct {
	fwk.CycleState
	data map[fwk.StateKey]fwk.StateData
}

func newState() *cycleState { return &cycleState{data: map[fwk.StateKey]fwk.StateData{}} }

func (s *cycleState) Read(key fwk.StateKey) (fwk.StateData, error) {
	if data, ok := s.data[key]; ok {
		return data, nil
	}
	return nil, fwk.ErrNotFound
}
func (s *cycleState) Write(key fwk.StateKey, data fwk.StateData) { s.data[key] = data }
func (s *cycleState) Clone() fwk.CycleState {
	clone := newState()
	for key, data := range s.data {
		clone.data[key] = data.Clone()
	}
	return clone
}

type nodeInfo struct {
	fwk.NodeInfo
	node       *v1.Node
	generation int64
	pods       []*v1.Pod
	requested  freeRoom
	images     map[string]*fwk.ImageStateSummary
}

// freeRoom is a part of fwk.Resource.
type freeRoom struct {
	fwk.Resource
	cpu, memory, storage int64
}

func (r freeRoom) GetMilliCPU() int64         { return r.cpu }
func (r freeRoom) GetMemory() int64           { return r.memory }
func (r freeRoom) GetEphemeralStorage() int64 { return r.storage }
func (r freeRoom) GetAllowedPodNumber() int   { return 10 }

// Every node has 8 CPUs, 8,000 bytes of each kind, and room for 10 pods.
func (n *nodeInfo) GetAllocatable() fwk.Resource {
	return freeRoom{cpu: 8000, memory: 8000, storage: 8000}
}
func (n *nodeInfo) GetRequested() fwk.Resource { return n.requested }

func (n *nodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }

func (n *nodeInfo) Node() *v1.Node       { return n.node }
func (n *nodeInfo) GetGeneration() int64 { return n.generation }
func (n *nodeInfo) GetPods() (all []fwk.PodInfo) {
	for _, pod := range n.pods {
		all = append(all, podInfo{pod: pod})
	}
	return all
}

type podInfo struct {
	fwk.PodInfo
	pod *v1.Pod
}

func (p podInfo) GetPod() *v1.Pod { return p.pod }

// world is a plugin with a cluster that its informers know of.
type world struct {
	*Plugin
	*handle
	client *fake.Clientset
	state  *cycleState
}

func newWorld(t *testing.T, args string, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldWith(t, args, func(*Plugin) {}, objects...)
}

// newWorldWith changes the plugin before it watches objects.
func newWorldWith(t *testing.T, args string, change func(*Plugin), objects ...runtime.Object) *world {
	t.Helper()
	client := fake.NewClientset(objects...)
	watched := make(chan string, 100)
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		watch, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace(), a.(clienttesting.WatchActionImpl).ListOptions)
		if err == nil {
			watched <- a.GetResource().Resource
		}
		return true, watch, err
	})
	h := &handle{client: client, factory: kube.NewInformers(client)}
	f := &Factory{Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := f.New(ctx, &runtime.Unknown{Raw: []byte(args)}, h)
	require.NoError(t, err)
	change(p.(*Plugin))
	h.factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		f.Wait()
		h.factory.Shutdown()
	})
	h.factory.WaitForCacheSync(ctx.Done())
	w := &world{Plugin: p.(*Plugin), handle: h, client: client, state: newState()}
	require.NoError(t, w.feed.Wait(ctx))
	// This client loses changes between list and watch.
	for missing := map[string]bool{"nodes": true, "pods": true, "resourcequotas": true}; len(missing) > 0; {
		delete(missing, <-watched)
	}
	return w
}

// placed is a pod that is bound to the node with what the engine gives it there.
func (w *world) placed(t *testing.T, pod *v1.Pod, node string) *v1.Pod {
	t.Helper()
	p := convert.Pod(pod)
	r, err := w.engine.Request(p)
	require.NoError(t, err)
	placement, err := w.engine.Reserve(p, r, node, "test")
	require.NoError(t, err)
	annotations, err := wire.Annotations(p, placement, nil, time.Unix(1_800_000_000, 0))
	require.NoError(t, err)
	pod = bound(pod, node, annotations)
	w.engine.SetPod(convert.Pod(pod))
	return pod
}

// preFilter begins a cycle.
func (w *world) preFilter(t *testing.T, pod *v1.Pod) *fwk.Status {
	t.Helper()
	w.state = newState()
	_, status := w.PreFilter(t.Context(), w.state, pod, nil)
	return status
}

// filter judges a node.
func (w *world) filter(t *testing.T, state fwk.CycleState, pod *v1.Pod, node string) fwk.Code {
	t.Helper()
	return w.Filter(t.Context(), state, pod, on(node)).Code()
}

func on(node string) *nodeInfo {
	return &nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}}
}

func (w *world) request(t *testing.T, pod *v1.Pod) *request.Request {
	t.Helper()
	r, err := w.engine.Request(convert.Pod(pod))
	require.NoError(t, err)
	return r
}
