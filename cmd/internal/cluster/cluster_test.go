package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

const (
	gpuA = "GPU-0a000000-1111-2222-3333-444455556666"
	gpuB = "GPU-0b000000-1111-2222-3333-444455556666"
)

func node(name string, uuids ...string) *v1.Node {
	gpus := []map[string]any{}
	for i, uuid := range uuids {
		gpus = append(gpus, map[string]any{"uuid": uuid, "model": "NVIDIA H200", "index": i, "memoryMiB": 80000, "cores": 100, "replicas": 10, "mode": "hami-core", "healthy": true})
	}
	text, _ := json.Marshal(map[string]any{"version": 1, "gpus": gpus})
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationNodeGPUs: string(text)}}}
}

// granted is a pod of the node with the shares in its container "main".
func granted(t testing.TB, name, node string, shares ...grant.Share) *v1.Pod {
	t.Helper()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "main"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	var err error
	p.Annotations, err = wire.Annotations(convert.Pod(p), scheduler.Placement{Node: node, Containers: [][]grant.Share{shares}}, nil, time.Unix(1, 0))
	require.NoError(t, err)
	return p
}

// server is a pod of a gpuslice component.
func server(component, node, port string, number int32) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpuslice", Name: component + "-" + node, Labels: map[string]string{
			"app.kubernetes.io/name": "gpuslice", "app.kubernetes.io/component": component,
		}},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: port, ContainerPort: number}}}}},
	}
}

// of is a cluster of objects with the answers of its pods.
func of(answers map[string]any, objects ...runtime.Object) (*Cluster, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	return &Cluster{client: client, get: func(_ context.Context, namespace, pod, path string, query map[string]string) ([]byte, error) {
		answer, there := answers[namespace+"/"+pod+path]
		if !there {
			return nil, errors.New("connection refused")
		}
		if err, is := answer.(error); is {
			return []byte(err.Error()), err
		}
		return json.Marshal(answer)
	}, Namespace: "ns"}, client
}

func TestViewOfACluster(t *testing.T) {
	one := view.Node{GPUs: []view.GPU{{UUID: gpuA, GrantedMemoryMiB: 5}}, Containers: []view.Container{{Pod: "ns/a", Name: "main"}}, Problems: []string{"x"}}
	c, _ := of(map[string]any{"gpuslice/agent-n1:9394/api/v1/view": one},
		node("n1", gpuA), node("n2", gpuB), node("n3", "GPU-0c000000-1111-2222-3333-444455556666"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		server("agent", "n1", "metrics", 9394), server("agent", "n2", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.GPUs, 3)
	assert.Equal(t, view.GPU{Node: "n1", UUID: gpuA, GrantedMemoryMiB: 5}, n.GPUs[0])
	assert.Equal(t, "n2", n.GPUs[1].Node)
	assert.Equal(t, int64(80000), n.GPUs[1].GrantableMiB, "by its Node object")
	require.Len(t, n.Containers, 1)
	assert.Equal(t, "n1", n.Containers[0].Node)
	require.Len(t, n.Problems, 3)
	assert.Equal(t, "node n1: x", n.Problems[0])
	assert.Contains(t, n.Problems[1], "node n2: its agent (pod gpuslice/agent-n2) does not answer: connection refused")
	assert.Contains(t, n.Problems[2], "node n3: it has no pod of gpuslice's agent")
}

// scheduling answers requests like a scheduler.
func scheduling(client *fake.Clientset, answer func(request string) (grant.ResizeStatus, string)) {
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		_, object, err := clienttesting.ObjectReaction(client.Tracker())(a)
		if err != nil {
			return true, nil, err
		}
		pod := object.(*v1.Pod).DeepCopy()
		request, asked := pod.Annotations[api.AnnotationResize]
		if !asked {
			return true, pod, nil
		}
		status, next := answer(request)
		status.Request = request
		text, _ := json.Marshal(status)
		delete(pod.Annotations, api.AnnotationResize)
		pod.Annotations[api.AnnotationResizeStatus] = string(text)
		if next != "" {
			pod.Annotations[api.AnnotationGrant] = next
		}
		return true, pod, client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "ns")
	})
}

func TestResize(t *testing.T) {
	more, mib := granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 9000, CorePercent: 10}), int64(9000)
	wanted := map[string]grant.Wanted{"main": {MemoryMiB: &mib}}
	pod := granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000, CorePercent: 10})
	running := view.Node{Containers: []view.Container{{PodUID: "uid-p", Name: "main", State: "active", Shares: []view.Share{{UUID: gpuA, MemoryMiB: 9000, CorePercent: 10}}}}}
	c, client := of(map[string]any{"gpuslice/agent-n1:9394/api/v1/view": running}, pod, server("agent", "n1", "metrics", 9394))
	scheduling(client, func(request string) (grant.ResizeStatus, string) {
		assert.Equal(t, `{"main":{"memoryMiB":9000}}`, request)
		return grant.ResizeStatus{Outcome: grant.ResizeReserved}, more.Annotations[api.AnnotationGrant]
	})
	resized, err := c.Resize(t.Context(), pod, wanted)
	require.NoError(t, err)
	name, shares, err := OneContainer(resized, "")
	require.NoError(t, err)
	assert.Equal(t, "main", name)
	assert.Equal(t, int64(9000), shares[0].MemoryMiB)
	require.NoError(t, c.Applied(t.Context(), resized, "main", shares))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Applied(ctx, resized, "main", []grant.Share{{UUID: gpuA, MemoryMiB: 1}}), ErrNotApplied)
	require.ErrorContains(t, c.Applied(ctx, resized, "other", shares), "is not running")

	c, client = of(nil, pod)
	scheduling(client, func(string) (grant.ResizeStatus, string) {
		return grant.ResizeStatus{Outcome: grant.ResizeRefused, Message: "too small"}, ""
	})
	_, err = c.Resize(t.Context(), pod, wanted)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "too small")
}

// A request without an answer is removed.
func TestResizeWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mib, pod := int64(9000), granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000})
		c, client := of(nil, pod)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := c.Resize(ctx, pod, map[string]grant.Wanted{"main": {MemoryMiB: &mib}})
		require.ErrorIs(t, err, ErrUnanswered)
		assert.Equal(t, time.Minute, time.Since(began))
		left, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		require.NoError(t, err)
		assert.NotContains(t, left.Annotations, api.AnnotationResize)
	})
}

// The scheduler answers between the last poll and the removal of the request: the answer is returned.
func TestResizeAnsweredAtTheTimeout(t *testing.T) {
	mib := int64(9000)
	for _, outcome := range []string{grant.ResizeReserved, grant.ResizeRefused, ""} {
		pod := granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000})
		c, client := of(nil, pod)
		ctx, cancel := context.WithCancel(t.Context())
		client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.(clienttesting.PatchAction).GetPatchType() != types.JSONPatchType {
				cancel()
				return false, nil, nil
			}
			if outcome == "" {
				return true, nil, errors.New("connection refused")
			}
			object, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), "ns", "p")
			require.NoError(t, err)
			now := object.(*v1.Pod).DeepCopy()
			status, err := json.Marshal(grant.ResizeStatus{Request: now.Annotations[api.AnnotationResize], Outcome: outcome, Message: "too small"})
			require.NoError(t, err)
			delete(now.Annotations, api.AnnotationResize)
			now.Annotations[api.AnnotationResizeStatus] = string(status)
			require.NoError(t, client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), now, "ns"))
			return false, nil, nil // the patch finds no request to test
		})
		found, err := c.Resize(ctx, pod, map[string]grant.Wanted{"main": {MemoryMiB: &mib}})
		switch outcome {
		case grant.ResizeReserved:
			require.NoError(t, err)
			assert.NotContains(t, found.Annotations, api.AnnotationResize)
		case grant.ResizeRefused:
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, "too small")
		default:
			require.ErrorIs(t, err, ErrUnanswered)
			require.ErrorContains(t, err, "still on the pod")
		}
	}
}

func TestOneContainer(t *testing.T) {
	pod := granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000})
	_, _, err := OneContainer(pod, "side")
	require.ErrorContains(t, err, `container "side" of pod ns/p has no GPUs: name one of main`)
	_, _, err = OneContainer(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}, "")
	require.ErrorContains(t, err, "has no GPUs by gpuslice's scheduler")
	share := []grant.Share{{UUID: gpuA, MemoryMiB: 1}}
	both, err := grant.EncodeGrant(&grant.PodGrant{Containers: map[string][]grant.Share{"b": share, "a": share}})
	require.NoError(t, err)
	pod.Annotations[api.AnnotationGrant] = both
	_, _, err = OneContainer(pod, "")
	require.ErrorContains(t, err, "several containers with GPUs (a, b): name one, as ns/p:a")
}

func TestCordonInACluster(t *testing.T) {
	c, client := of(nil, node("n1", gpuA, gpuB))
	cordoned := func() string {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[api.AnnotationHAMiCordon]
	}
	for _, step := range []struct {
		uuid    string
		on      bool
		changed bool
		want    string
	}{
		{gpuA, true, true, gpuA}, {gpuA, true, false, gpuA}, {gpuB, true, true, gpuA + "," + gpuB},
		{gpuA, false, true, gpuB}, {gpuA, false, false, gpuB}, {gpuB, false, true, ""},
	} {
		changed, err := c.Cordon(t.Context(), "n1", step.uuid, step.on)
		require.NoError(t, err)
		assert.Equal(t, step.changed, changed)
		assert.Equal(t, step.want, cordoned())
	}
	for name, want := range map[string]string{"1": gpuB, gpuA: gpuA, "GPU-0b": gpuB} {
		uuid, err := c.GPU(t.Context(), "n1", name)
		require.NoError(t, err)
		assert.Equal(t, want, uuid)
	}
	for name, want := range map[string]string{"7": `node n1: GPU "7" not found`, "GPU-0": "is ambiguous"} {
		_, err := c.GPU(t.Context(), "n1", name)
		require.ErrorContains(t, err, want)
	}
	_, err := c.Cordon(t.Context(), "n9", gpuA, true)
	require.ErrorContains(t, err, "n9")
}

func TestExplain(t *testing.T) {
	waiting := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Status: v1.PodStatus{Conditions: []v1.PodCondition{
		{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "0/1 nodes are available"},
	}}}
	explained := engine.Explanation{Pod: "ns/p", State: engine.ExplainedPending, Text: "too small"}
	c, _ := of(map[string]any{"gpuslice/scheduler-n2:8080/debug/explain": explained}, waiting, server("scheduler", "n1", "http", 8080), server("scheduler", "n2", "http", 8080))
	x, err := c.Explain(t.Context(), "ns", "p")
	require.NoError(t, err, "one of them answers")
	assert.Equal(t, Explanation{Explanation: explained, Scheduled: "0/1 nodes are available"}, x)

	runs := granted(t, "runs", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000})
	since := time.Unix(1700000000, 0).UTC()
	held := []view.Share{{UUID: gpuA, HoldsSince: since}, {UUID: gpuB}}
	answers := map[string]any{
		"gpuslice/scheduler-n1:8080/debug/explain": engine.Explanation{Pod: "ns/runs", State: engine.ExplainedBound, Node: "n1"},
		"gpuslice/agent-n1:9394/api/v1/view": view.Node{Containers: []view.Container{
			{PodUID: string(runs.UID), Pod: "ns/runs", Name: "main", Shares: held}, {PodUID: "another", Pod: "ns/runs", Name: "main", Shares: held},
		}},
	}
	c, _ = of(answers, runs, server("scheduler", "n1", "http", 8080), server("agent", "n2", "metrics", 9394), server("agent", "n1", "metrics", 9394))
	x, err = c.Explain(t.Context(), "ns", "runs")
	require.NoError(t, err)
	assert.Equal(t, []Hold{{Container: "main", GPU: gpuA, Since: since}}, x.Holds)
	delete(answers, "gpuslice/agent-n1:9394/api/v1/view")
	x, err = c.Explain(t.Context(), "ns", "runs")
	require.NoError(t, err, "the agent does not answer")
	assert.Empty(t, x.Holds)

	c, _ = of(nil, waiting)
	_, err = c.Explain(t.Context(), "ns", "p")
	require.ErrorContains(t, err, "gpuslice's scheduler is not found: no pod has the labels")
	_, err = c.Explain(t.Context(), "ns", "q")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	c, _ = of(nil, waiting, server("scheduler", "n1", "other", 8080))
	_, err = c.Explain(t.Context(), "ns", "p")
	require.ErrorIs(t, err, errNoPort)
}

// The proxy gets the pod's name and the number of its port.
func TestThroughTheProxy(t *testing.T) {
	var mu sync.Mutex
	var asked string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = r.Method + " " + r.URL.String()
		if r.URL.Query().Get("pod") == "none" {
			http.Error(w, "pod ns/none: there is none", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"pod":"ns/p"}`)
	}))
	defer api.Close()
	c, err := connect(&rest.Config{Host: api.URL}, "ns", "")
	require.NoError(t, err)
	var x engine.Explanation
	pod := server("scheduler", "n1", "http", 8080)
	require.NoError(t, c.request(t.Context(), pod, "http", "/debug/explain", map[string]string{"namespace": "ns", "pod": "p"}, &x))
	assert.Equal(t, "GET /api/v1/namespaces/gpuslice/pods/scheduler-n1:8080/proxy/debug/explain?namespace=ns&pod=p", asked)
	assert.Equal(t, "ns/p", x.Pod)
	err = c.request(t.Context(), pod, "http", "/debug/explain", map[string]string{"pod": "none"}, &x)
	require.ErrorIs(t, err, errNotKnown)
	require.ErrorContains(t, err, "there is none", "the message of the server")
}

// While an agent is away, what is granted is known from annotations, and what is in use is not.
func TestGrantsWithoutAnAgent(t *testing.T) {
	ended := granted(t, "ended", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	ended.Status.Phase = v1.PodSucceeded
	c, client := of(nil, node("n1", gpuA, gpuB), node("n2", gpuB), ended,
		granted(t, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 4096, CorePercent: 25}),
		granted(t, "q", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1000}),
		granted(t, "z-other", "n2", grant.Share{UUID: gpuB, MemoryMiB: 7}))
	check := func(n view.Node) {
		t.Helper()
		require.GreaterOrEqual(t, len(n.GPUs), 2)
		a, b := n.GPUs[0], n.GPUs[1]
		assert.Equal(t, []any{int64(5096), 25, 2}, []any{a.GrantedMemoryMiB, a.GrantedCores, a.GrantedContainers})
		assert.Zero(t, b.GrantedContainers)
		assert.True(t, a.UseUnknown && b.UseUnknown)
		assert.False(t, a.GrantsUnknown || b.GrantsUnknown)
		require.GreaterOrEqual(t, len(n.Containers), 2)
		p := n.Containers[0]
		assert.Equal(t, []string{"ns/p", "main", api.StateGranted, "uid-p"}, []string{p.Pod, p.Name, p.State, p.PodUID})
		assert.Equal(t, []view.Share{{UUID: gpuA, MemoryMiB: 4096, CorePercent: 25, UseUnknown: true}}, p.Shares)
	}
	n, err := c.View(t.Context())
	require.NoError(t, err)
	check(n)
	require.Len(t, n.Containers, 3)
	n, _, err = c.Node(t.Context(), "n1")
	require.NoError(t, err)
	check(n)
	require.Len(t, n.Containers, 2)

	client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.ListAction).GetListRestrictions().Labels.Empty() {
			return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "", errors.New("no right"))
		}
		return false, nil, nil
	})
	for _, read := range []func() (view.Node, error){
		func() (view.Node, error) { return c.View(t.Context()) },
		func() (view.Node, error) { n, _, err := c.Node(t.Context(), "n1"); return n, err },
	} {
		n, err := read()
		require.NoError(t, err)
		assert.True(t, n.GPUs[0].GrantsUnknown)
		assert.Empty(t, n.Containers)
		assert.Contains(t, n.Problems[len(n.Problems)-1], "what is granted on nodes without an answer is not known: ")
	}
}

// Names for completions.
func TestNamesForCompletions(t *testing.T) {
	two := granted(t, "two", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	two.Spec.Containers = append(two.Spec.Containers, v1.Container{Name: "side"})
	share := []grant.Share{{UUID: gpuA, MemoryMiB: 1}}
	var err error
	two.Annotations, err = wire.Annotations(convert.Pod(two), scheduler.Placement{Node: "n1", Containers: [][]grant.Share{share, share}}, nil, time.Unix(1, 0))
	require.NoError(t, err)
	ended := granted(t, "ended", "n1", share...)
	ended.Status.Phase = v1.PodFailed
	plain := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plain"}}
	c, _ := of(nil, node("n1", gpuA, gpuB), node("n2"), granted(t, "one", "n1", share...), plain, two, ended)
	nodes, err := c.NodesWithGPUs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"n1"}, nodes)
	pods, err := c.Pods(t.Context(), "ns")
	require.NoError(t, err)
	assert.Equal(t, []string{"one", "plain", "two"}, pods)
	sharing, err := c.Sharing(t.Context(), "ns")
	require.NoError(t, err)
	assert.Equal(t, []string{"one", "two:main", "two:side"}, sharing)
	gpus, err := c.GPUs(t.Context(), "n1")
	require.NoError(t, err)
	assert.Equal(t, []GPU{{gpuA, 0}, {gpuB, 1}}, gpus)
}
