package extender

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// testCluster has pods, binds them as the API server does, and updates the engine.
type testCluster struct {
	*Cluster
	factory informers.SharedInformerFactory
	engine  *engine.Engine

	mu         sync.Mutex
	bind, look error // of the next calls
	requeued   []string
	patches    []string
	failing    int // of the next patches
	evicted    []string
}

func newCluster(t testing.TB, e *engine.Engine) *testCluster {
	client := fake.NewClientset()
	factory := kube.NewInformers(client)
	cluster, err := NewCluster(client, factory)
	require.NoError(t, err)
	c := &testCluster{Cluster: cluster, factory: factory, engine: e}
	reaction := func(f func(clienttesting.Action) (runtime.Object, error)) clienttesting.ReactionFunc {
		return func(a clienttesting.Action) (bool, runtime.Object, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			object, err := f(a)
			return true, object, err
		}
	}
	client.PrependReactor("create", "pods", reaction(func(a clienttesting.Action) (runtime.Object, error) {
		switch o := a.(clienttesting.CreateAction).GetObject().(type) {
		case *v1.Binding:
			return o, c.bound(o)
		case *policyv1.Eviction:
			c.evicted = append(c.evicted, o.Name)
			return o, nil
		default:
			return nil, fmt.Errorf("unexpected %T", o)
		}
	}))
	client.PrependReactor("get", "pods", reaction(func(a clienttesting.Action) (runtime.Object, error) {
		p, err := cluster.pods.Pods(a.GetNamespace()).Get(a.(clienttesting.GetAction).GetName())
		return p, cmp.Or(c.look, err)
	}))
	client.PrependReactor("patch", "pods", reaction(func(a clienttesting.Action) (runtime.Object, error) {
		if c.failing > 0 {
			c.failing--
			return nil, errors.New("the API server is unreachable")
		}
		patch := a.(clienttesting.PatchAction)
		c.requeued, c.patches = append(c.requeued, patch.GetName()), append(c.patches, string(patch.GetPatch()))
		return &v1.Pod{}, nil
	}))
	return c
}

func (c *testCluster) bound(b *v1.Binding) error {
	if c.bind != nil {
		return c.bind
	}
	p := c.named(b.Name).DeepCopy()
	if p.Spec.NodeName != "" {
		return apierrors.NewConflict(v1.Resource("pods"), b.Name, errors.New("it is bound"))
	}
	p.Spec.NodeName = b.Target.Name
	p.Annotations = maps.Clone(p.Annotations)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, b.Annotations)
	c.add(p)
	c.engine.SetPod(convert.Pod(p))
	return nil
}

func (c *testCluster) named(name string) *v1.Pod {
	p, err := c.pods.Pods("default").Get(name)
	if err != nil {
		panic(err)
	}
	return p
}

func (c *testCluster) add(p *v1.Pod) { _ = c.index.Add(p) }

func (c *testCluster) remove(names ...string) {
	for _, name := range names {
		p := c.named(name)
		_ = c.index.Delete(p)
		c.engine.DeletePod(string(p.UID))
	}
}

// world is an extender over nodes with GPUs of 80 GiB.
type world struct {
	t       *testing.T
	engine  *engine.Engine
	cluster *testCluster
	server  *Server
	url     string
	nodes   []string
	now     func() time.Time
}

func newWorld(t *testing.T, nodes, gpus int, options ...func(*Options)) *world {
	w := &world{t: t, now: time.Now}
	e, err := engine.New(engine.Options{Request: request.DefaultOptions(), Clock: func() time.Time { return w.now() }})
	require.NoError(t, err)
	w.engine, w.cluster = e, newCluster(t, e)
	for i := range nodes {
		name := fmt.Sprintf("node-%02d", i)
		w.nodes = append(w.nodes, name)
		require.NoError(t, w.cluster.nodes.Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		e.SetNode(&scheduler.Node{Name: name, Annotations: map[string]string{"gpuslice.io/node-gpus": register(i, gpus)}})
	}
	o := Options{Engine: e, Cluster: w.cluster.Cluster, Version: "test"}
	for _, f := range options {
		f(&o)
	}
	w.server = New(o)
	server := httptest.NewServer(w.server.Handler())
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func register(node, gpus int) string {
	list := make([]map[string]any, gpus)
	for i := range list {
		list[i] = map[string]any{"uuid": gpuUUID(node, i), "index": i, "replicas": 10, "memoryMiB": 81920, "cores": 100,
			"model": "NVIDIA H100 80GB HBM3", "mode": "hami-core", "healthy": true}
	}
	text, _ := json.Marshal(map[string]any{"version": 1, "gpus": list})
	return string(text)
}

func gpuUUID(node, gpu int) string {
	return fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", node, gpu)
}

// pod asks for one GPU's memory and cores.
func pod(name string, memoryMiB, cores int64, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{
			"nvidia.com/gpu":      *resource.NewQuantity(1, resource.DecimalSI),
			"nvidia.com/gpumem":   *resource.NewQuantity(memoryMiB, resource.DecimalSI),
			"nvidia.com/gpucores": *resource.NewQuantity(cores, resource.DecimalSI),
		}}}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func (w *world) post(path string, args, answer any) (status int, text string) {
	w.t.Helper()
	body, err := json.Marshal(args)
	require.NoError(w.t, err)
	return w.send(path, body, answer)
}

// client keeps its connections: callers that try again and again would use up the ports.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (w *world) send(path string, body []byte, answer any) (status int, text string) {
	response, err := client.Post(w.url+path, "application/json", bytes.NewReader(body))
	if !assert.NoError(w.t, err) {
		return 0, ""
	}
	defer response.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(response.Body)
	assert.NoError(w.t, err)
	if response.StatusCode == http.StatusOK && answer != nil {
		assert.NoError(w.t, json.Unmarshal(b.Bytes(), answer), b.String())
	}
	return response.StatusCode, b.String()
}

func (w *world) filter(p *v1.Pod) (passed []string, result extenderv1.ExtenderFilterResult) {
	return w.filterOf(p, w.nodes)
}

func (w *world) filterOf(p *v1.Pod, nodes []string) (passed []string, result extenderv1.ExtenderFilterResult) {
	status, text := w.post("/filter", extenderv1.ExtenderArgs{Pod: p, NodeNames: &nodes}, &result)
	assert.Equal(w.t, http.StatusOK, status, text)
	if result.NodeNames != nil {
		passed = *result.NodeNames
	}
	return passed, result
}

func (w *world) bind(p *v1.Pod, node string) string {
	var result extenderv1.ExtenderBindingResult
	status, text := w.post("/bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: node}, &result)
	assert.Equal(w.t, http.StatusOK, status, text)
	return result.Error
}

// place does what a kube-scheduler does: filter, prioritize, bind to the best.
func (w *world) place(p *v1.Pod) (node string, why string) {
	w.cluster.add(p)
	passed, result := w.filter(p)
	if len(passed) == 0 {
		return "", fmt.Sprint(result.FailedNodes, result.FailedAndUnresolvableNodes)
	}
	var list extenderv1.HostPriorityList
	w.post("/prioritize", extenderv1.ExtenderArgs{Pod: p, NodeNames: &passed}, &list)
	best := slices.MaxFunc(list, func(a, b extenderv1.HostPriority) int { return int(a.Score - b.Score) })
	if why := w.bind(p, best.Host); why != "" {
		return "", why
	}
	return best.Host, ""
}

// audit sums what the pods' annotations give of each GPU, and fails if it is too much.
func (w *world) audit() (memoryMiB map[string]int64) {
	memoryMiB = map[string]int64{}
	cores := map[string]int{}
	replicas := map[string]int{}
	for _, object := range w.cluster.index.List() {
		p := object.(*v1.Pod)
		if p.Spec.NodeName == "" {
			continue
		}
		g, err := grant.DecodeGrant(p.Annotations[api.AnnotationGrant])
		require.NoError(w.t, err)
		for _, shares := range g.Containers {
			for _, s := range shares {
				memoryMiB[s.UUID] += s.MemoryMiB
				cores[s.UUID] += s.CorePercent
				replicas[s.UUID]++
			}
		}
	}
	for uuid := range memoryMiB {
		assert.LessOrEqual(w.t, memoryMiB[uuid], int64(81920), uuid)
		assert.LessOrEqual(w.t, cores[uuid], 100, uuid)
		assert.LessOrEqual(w.t, replicas[uuid], 10, uuid)
	}
	return memoryMiB
}

// TestPrioritiesOfPodsWithPreferences: they are low enough that kube-scheduler's own plugins choose.
func TestPrioritiesOfPodsWithPreferences(t *testing.T) {
	w := newWorld(t, 3, 1, func(o *Options) { o.ScoreWithPreferences = 20 })
	other := pod("other", 1000, 0)
	node, why := w.place(other)
	require.NotEmpty(t, node, why)
	scores := func(p *v1.Pod) (all []int64) {
		var list extenderv1.HostPriorityList
		w.post("/prioritize", extenderv1.ExtenderArgs{Pod: p, NodeNames: &w.nodes}, &list)
		for _, s := range list {
			all = append(all, s.Score)
		}
		slices.Sort(all)
		return all
	}
	asks := pod("p", 1000, 0)
	require.Equal(t, []int64{0, 0, 10}, scores(asks))
	asks.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: "zone", WhenUnsatisfiable: v1.DoNotSchedule}}
	require.Equal(t, []int64{0, 0, 10}, scores(asks))
	asks.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = v1.ScheduleAnyway
	require.Equal(t, []int64{0, 0, 2}, scores(asks))
	w = newWorld(t, 3, 1, func(o *Options) { o.ScoreWithPreferences = 1 })
	require.Equal(t, []int64{0, 0, 1}, scores(asks), "the choice by GPUs still breaks ties")
}

func TestFilterAndBind(t *testing.T) {
	w := newWorld(t, 2, 2)
	for i := range 4 {
		node, why := w.place(pod(fmt.Sprint("whole-", i), 81920, 100))
		require.Empty(t, why)
		require.NotEmpty(t, node)
	}
	passed, result := w.filter(pod("late", 1000, 10))
	require.Empty(t, passed)
	require.Len(t, result.FailedNodes, 2, "evicting a pod would help")
	for node, why := range result.FailedNodes {
		assert.Contains(t, why, node)
		assert.Contains(t, why, "2 with less than 1000 MiB free (most: 0 MiB)")
	}
	require.Len(t, w.audit(), 4)
}

// Every refused node is named with its reason, whichever form the nodes come in.
func TestFilterReturnsReasons(t *testing.T) {
	w := newWorld(t, 3, 1)
	nodes := append(slices.Clone(w.nodes), "elsewhere")
	var result extenderv1.ExtenderFilterResult
	w.post("/filter", extenderv1.ExtenderArgs{Pod: pod("large", 90000, 0), NodeNames: &nodes}, &result)
	require.Empty(t, *result.NodeNames)
	require.Len(t, result.FailedNodes, 3)
	require.Contains(t, result.FailedAndUnresolvableNodes["elsewhere"], "elsewhere: unknown node")

	objects := &v1.NodeList{}
	for _, n := range nodes {
		objects.Items = append(objects.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	result = extenderv1.ExtenderFilterResult{}
	w.post("/filter", extenderv1.ExtenderArgs{Pod: pod("fits", 8000, 0), Nodes: objects}, &result)
	require.Nil(t, result.NodeNames)
	require.Len(t, result.Nodes.Items, 1)
	require.Equal(t, w.nodes[0], result.Nodes.Items[0].Name)
	require.Contains(t, result.FailedAndUnresolvableNodes, "elsewhere")
}

func TestPodsWithoutGPUsPass(t *testing.T) {
	w := newWorld(t, 2, 1)
	p := pod("plain", 0, 0, func(p *v1.Pod) { p.Spec.Containers[0].Resources = v1.ResourceRequirements{} })
	w.cluster.add(p)
	passed, _ := w.filter(p)
	require.Equal(t, w.nodes, passed)
	require.Empty(t, w.bind(p, w.nodes[1]))
	require.Empty(t, w.cluster.named(p.Name).Annotations)
}

// A filter is repeated after a bind that failed, by the same scheduler or another one; its
// answer doesn't depend on its own reservation.
func TestFilterIsIdempotent(t *testing.T) {
	w := newWorld(t, 1, 1)
	p := pod("whole", 81920, 100)
	w.cluster.add(p)
	for range 3 {
		passed, _ := w.filter(p)
		require.Equal(t, w.nodes, passed)
	}
	passed, _ := w.filter(pod("other", 1000, 0))
	require.Empty(t, passed, "the GPU is reserved")

	w.cluster.bind = apierrors.NewForbidden(v1.Resource("pods"), p.Name, errors.New("a webhook denied it"))
	require.Contains(t, w.bind(p, w.nodes[0]), "a webhook denied it")
	passed, _ = w.filter(pod("other", 1000, 0))
	require.Equal(t, w.nodes, passed, "a failed bind releases its reservation")
}

// An answer that was lost is asked for again.
func TestBindIsIdempotent(t *testing.T) {
	w := newWorld(t, 1, 1)
	p := pod("whole", 81920, 100)
	w.cluster.add(p)
	w.filter(p)
	require.Empty(t, w.bind(p, w.nodes[0]))
	require.Empty(t, w.bind(p, w.nodes[0]))
	require.Contains(t, w.bind(pod("unknown", 1, 0), w.nodes[0]), "not found")
}

// A scheduler may take another node than the one that is reserved.
func TestBindToAnotherNode(t *testing.T) {
	w := newWorld(t, 2, 1)
	p := pod("whole", 81920, 100)
	w.cluster.add(p)
	w.filter(p)
	other := w.nodes[0]
	if w.engine.AllocatedNode(string(p.UID)) == other {
		other = w.nodes[1]
	}
	require.Empty(t, w.bind(p, other))
	_, why := w.place(pod("second", 81920, 100))
	require.Empty(t, why, "the reservation has moved along")
	require.Len(t, w.audit(), 2)
}

func TestDryRunChangesNothing(t *testing.T) {
	w := newWorld(t, 1, 1)
	var result extenderv1.ExtenderFilterResult
	w.post("/filter-dryrun", extenderv1.ExtenderArgs{Pod: pod("simulated", 81920, 100), NodeNames: &w.nodes}, &result)
	require.Equal(t, w.nodes, *result.NodeNames)
	require.Empty(t, w.engine.AllocatedNode("uid-simulated"))
	passed, _ := w.filter(pod("real", 81920, 100))
	require.Equal(t, w.nodes, passed)
}

// A reservation of filter expires without a bind; a bind in progress keeps it.
func TestReservationsExpire(t *testing.T) {
	w := newWorld(t, 1, 1, func(o *Options) { o.ReservationTimeout = time.Minute })
	now := time.Now()
	w.now = func() time.Time { return now }
	other := pod("other", 81920, 100)
	w.filter(pod("gone", 81920, 100))
	now = now.Add(59 * time.Second)
	passed, _ := w.filter(other)
	require.Empty(t, passed)
	now = now.Add(2 * time.Second)
	passed, _ = w.filter(other)
	require.Equal(t, w.nodes, passed)
	require.Empty(t, w.engine.AllocatedNode("uid-gone"))
	now = now.Add(time.Hour)

	p := pod("bound", 81920, 100)
	w.cluster.add(p)
	w.filter(p)
	require.Empty(t, w.bind(p, w.nodes[0]))
	now = now.Add(time.Hour)
	passed, _ = w.filter(other)
	require.Empty(t, passed)
	require.Equal(t, w.nodes[0], w.engine.AllocatedNode("uid-bound"))
}

func TestBadTimeouts(t *testing.T) {
	for _, c := range []Config{{ReservationTimeout: -time.Second}, {GroupTimeout: -time.Second}, {BestNodes: -1}} {
		require.ErrorContains(t, Run(t.Context(), c), "-1")
		require.ErrorContains(t, Run(t.Context(), c), "must not be negative")
	}
}

// 8 callers, as 8 schedulers at once, on a cluster that fits exactly: every pod is placed,
// nothing twice; and the ones that are too many are refused.
func TestConcurrentBinds(t *testing.T) {
	const nodes, gpus, callers = 4, 8, 8
	for _, request := range []struct{ memoryMiB, cores, each int64 }{{40960, 50, 2}, {8192, 10, 10}, {81920, 100, 1}, {40960, 0, 2}} {
		t.Run(fmt.Sprint(request), func(t *testing.T) {
			w := newWorld(t, nodes, gpus)
			fits := int(nodes * gpus * request.each)
			var refused sync.Map
			work := make(chan int)
			var g errgroup.Group
			for range callers {
				g.Go(func() error {
					for i := range work {
						p := pod(fmt.Sprint("pod-", i), request.memoryMiB, request.cores)
						if node, why := w.place(p); node == "" {
							refused.Store(i, why)
						}
					}
					return nil
				})
			}
			for i := range fits {
				work <- i
			}
			close(work)
			require.NoError(t, g.Wait())
			refused.Range(func(i, why any) bool {
				t.Errorf("pod %v is refused: %v", i, why)
				return true
			})
			require.Len(t, w.audit(), nodes*gpus)
			node, why := w.place(pod("too-many", request.memoryMiB, request.cores))
			require.Empty(t, node)
			require.NotEmpty(t, why)
		})
	}
}

// 16 pods of half a GPU onto 8 GPUs fill each GPU with two, at the first try.
func TestHalvesFillGPUs(t *testing.T) {
	w := newWorld(t, 1, 8)
	for i := range 16 {
		_, why := w.place(pod(fmt.Sprint("half-", i), 40960, 50))
		require.Empty(t, why)
	}
	for uuid, mib := range w.audit() {
		require.Equal(t, int64(81920), mib, uuid)
	}
}

func TestPreempt(t *testing.T) {
	w := newWorld(t, 2, 1)
	low := func(p *v1.Pod) { p.Spec.Priority = new(int32) }
	for i := range 4 {
		_, why := w.place(pod(fmt.Sprint("low-", i), 40960, 0, low))
		require.Empty(t, why)
	}
	urgent := pod("urgent", 30000, 0, func(p *v1.Pod) { high := int32(1000); p.Spec.Priority = &high })
	var result extenderv1.ExtenderPreemptionResult
	w.post("/preempt", extenderv1.ExtenderPreemptionArgs{Pod: urgent, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
		w.nodes[0]: {}, w.nodes[1]: nil, "elsewhere": {},
	}}, &result)
	require.Len(t, result.NodeNameToMetaVictims, 2, "elsewhere there are no GPUs")
	for node, victims := range result.NodeNameToMetaVictims {
		require.Len(t, victims.Pods, 1, "one is enough on %s", node)
		require.Contains(t, victims.Pods[0].UID, "uid-low-")
	}

	equal := pod("equal", 30000, 0, low)
	result = extenderv1.ExtenderPreemptionResult{}
	w.post("/preempt", extenderv1.ExtenderPreemptionArgs{Pod: equal, NodeNameToVictims: map[string]*extenderv1.Victims{w.nodes[0]: {}}}, &result)
	require.Empty(t, result.NodeNameToMetaVictims, "no pod is less important")
}

func grouped(group string, least int) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Labels = map[string]string{api.LabelGroup: group}
		p.Annotations = map[string]string{api.AnnotationGroupMin: fmt.Sprint(least)}
	}
}

// The pods of a group are bound together or not at all.
func TestGroups(t *testing.T) {
	w := newWorld(t, 1, 4, func(o *Options) { o.GroupTimeout = time.Hour })
	place := func(n int, group string, least int) (placed int) {
		var g errgroup.Group
		var mu sync.Mutex
		var pods []*v1.Pod
		for i := range n {
			pods = append(pods, pod(fmt.Sprintf("%s-%d", group, i), 81920, 100, grouped(group, least)))
			w.cluster.add(pods[i])
		}
		for _, p := range pods {
			g.Go(func() error {
				node, _ := w.place(p)
				mu.Lock()
				defer mu.Unlock()
				if node != "" {
					placed++
				}
				return nil
			})
		}
		_ = g.Wait()
		return placed
	}
	require.Equal(t, 0, place(2, "small", 3), "two of three")
	require.Empty(t, w.audit())
	require.Equal(t, 3, place(3, "whole", 3))
	w.server.GroupTimeout = 300 * time.Millisecond
	require.Equal(t, 0, place(2, "more", 2), "one GPU is left")
	require.Len(t, w.audit(), 3)
	// A further pod of a group with bound pods does not wait, however many are missing.
	w.cluster.remove("whole-0", "whole-1")
	node, why := w.place(pod("whole-late", 81920, 100, grouped("whole", 3)))
	require.NotEmpty(t, node, why)
}

func TestBadCalls(t *testing.T) {
	w := newWorld(t, 1, 1)
	for body, want := range map[string]int{
		"":                            http.StatusBadRequest,
		"{":                           http.StatusBadRequest,
		"[]":                          http.StatusBadRequest,
		"{} {}":                       http.StatusBadRequest,
		`{"Pod":3}`:                   http.StatusBadRequest,
		`{"NodeNames":["node-00"]}`:   http.StatusOK,
		`{"Pod":{},"NodeNames":null}`: http.StatusOK,
	} {
		status, _ := w.send("/filter", []byte(body), nil)
		assert.Equal(t, want, status, body)
	}
	var result extenderv1.ExtenderFilterResult
	w.post("/filter", extenderv1.ExtenderArgs{NodeNames: &w.nodes}, &result)
	require.Contains(t, result.FailedAndUnresolvableNodes["node-00"], "call has no pod")

	p := pod("half", 0, 0, func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"tencent.com/vcuda-core": resource.MustParse("150"), "tencent.com/vcuda-memory": resource.MustParse("4")}
	})
	_, result = w.filter(p)
	require.Contains(t, result.FailedAndUnresolvableNodes["node-00"], "100")

	p = pod("policy", 1000, 0, func(p *v1.Pod) { p.Annotations = map[string]string{"hami.io/gpu-scheduler-policy": "tidy"} })
	_, result = w.filter(p)
	require.Contains(t, result.FailedAndUnresolvableNodes["node-00"], "tidy")
}

func TestNotReady(t *testing.T) {
	w := newWorld(t, 1, 1, func(o *Options) { o.Ready = func() error { return errNotLeading } })
	status, text := w.post("/filter", extenderv1.ExtenderArgs{Pod: pod("p", 1, 0), NodeNames: &w.nodes}, nil)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, errNotLeading.Error())
	response, err := http.Get(w.url + "/readyz")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
}

// gpu-admission's paths, and what people look at.
func TestOtherPaths(t *testing.T) {
	w := newWorld(t, 1, 1)
	var result extenderv1.ExtenderFilterResult
	w.post("/scheduler/predicates", extenderv1.ExtenderArgs{Pod: pod("p", 1000, 0), NodeNames: &w.nodes}, &result)
	require.Equal(t, w.nodes, *result.NodeNames)
	var list extenderv1.HostPriorityList
	w.post("/scheduler/priorities", extenderv1.ExtenderArgs{Pod: pod("p", 1000, 0), NodeNames: &w.nodes}, &list)
	require.Equal(t, extenderv1.HostPriorityList{{Host: "node-00", Score: 10}}, list)
	for path, want := range map[string]string{"/version": "test", "/healthz": "ok", "/readyz": "ok", "/debug/state": "node-00", "/": "<h2><bdi>node-00"} {
		response, err := http.Get(w.url + path)
		require.NoError(t, err)
		var b strings.Builder
		_, err = fmt.Fprint(&b, response.Status)
		require.NoError(t, err)
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Contains(t, body.String(), want, path)
	}
}

// kube-scheduler may know of a pod's end before we do: it asks, is refused, and has no event to come.
func TestRequeue(t *testing.T) {
	now := time.Now()
	w := newWorld(t, 1, 1, func(o *Options) { o.Clock = func() time.Time { return now } })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.server.Run(ctx)
	requeued := func() []string {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return slices.Clone(w.cluster.requeued)
	}
	_, why := w.place(pod("first", 81920, 100))
	require.Empty(t, why)
	passed, _ := w.filter(pod("long-ago", 1000, 0))
	require.Empty(t, passed)
	now = now.Add(time.Minute)
	passed, _ = w.filter(pod("early", 1000, 0))
	require.Empty(t, passed)
	w.server.Sink().DeletePod("uid-unknown") // frees no GPU
	w.server.Sink().DeletePod("uid-first")
	require.Eventually(t, func() bool { return slices.Equal(requeued(), []string{"early"}) }, time.Minute, time.Millisecond)

	// Once is enough, and a pod with a reservation needs none.
	passed, _ = w.filter(pod("early", 1000, 0))
	require.NotEmpty(t, passed)
	w.server.Sink().SetNode(&scheduler.Node{Name: "other"})
	ended := &scheduler.Pod{UID: "uid-early", Namespace: "default", Name: "early", Ended: true}
	w.server.Sink().SetPod(ended)
	_, why = w.place(pod("whole", 81920, 100))
	require.Empty(t, why)
	passed, _ = w.filter(pod("late", 1000, 0))
	require.Empty(t, passed)
	w.server.Sink().SetPod(&scheduler.Pod{UID: "uid-whole", Namespace: "default", Name: "whole", Ended: true})
	require.Eventually(t, func() bool { return slices.Equal(requeued(), []string{"early", "late"}) }, time.Minute, time.Millisecond)
}
