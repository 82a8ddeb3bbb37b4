package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// serverIn is a pod of another namespace with the labels of a component.
func serverIn(namespace, component, node string) *v1.Pod {
	port, number := portMetrics, int32(9394)
	if component == componentScheduler {
		port, number = portHTTP, 8080
	}
	p := server(component, node, port, number)
	p.Namespace = namespace
	return p
}

// ready makes pods ready.
func ready(pods ...*v1.Pod) {
	for _, p := range pods {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	}
}

// lister is a cluster that allows to list pods in the given namespaces; "" is all.
func lister(systemNamespace string, may []string, pods ...*v1.Pod) *Cluster {
	objects := make([]runtime.Object, len(pods))
	for i, p := range pods {
		objects[i] = p
	}
	c, client := of(nil, objects...)
	c.systemNamespace = systemNamespace
	client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		for _, namespace := range may {
			if namespace == a.GetNamespace() {
				return false, nil, nil
			}
		}
		return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "", errors.New("no right in "+a.GetNamespace()))
	})
	return c
}

// Any user can put gpuslice's labels on pods: only one namespace is trusted.
func TestServersOfOneNamespace(t *testing.T) {
	all, agent := []string{""}, func(namespace string) *v1.Pod { return serverIn(namespace, componentAgent, "n1") }
	ended, restarting := agent("kube-system"), agent("gpuslice")
	ended.Status.Phase = v1.PodFailed
	restarting.Name = "another"
	ready(restarting)
	leaving := agent("gpuslice")
	now := metav1.Now()
	leaving.Name, leaving.DeletionTimestamp, leaving.Finalizers = "a-leaving", &now, []string{"x/y"}
	ready(leaving)
	for _, test := range []struct {
		name, namespace string
		may             []string
		pods            []*v1.Pod
		want, others    []string
		texts           []string
	}{
		{name: "a tenant's beside ours", may: all, pods: []*v1.Pod{agent("a-team"), agent("gpuslice-system")}, want: []string{"gpuslice-system/agent-n1"}, others: []string{"a-team/agent-n1"}},
		{name: "kube-system", may: all, pods: []*v1.Pod{agent("kube-system")}, want: []string{"kube-system/agent-n1"}},
		{name: "one that has ended", may: all, pods: []*v1.Pod{agent("gpuslice"), ended}, want: []string{"gpuslice/agent-n1"}},
		{name: "ready ones first", may: all, pods: []*v1.Pod{agent("gpuslice"), restarting, leaving}, want: []string{"gpuslice/another", "gpuslice/a-leaving", "gpuslice/agent-n1"}},
		{name: "two of the usual namespaces", may: all, pods: []*v1.Pod{agent("gpuslice"), agent("kube-system")}, others: []string{"gpuslice/agent-n1", "kube-system/agent-n1"}, texts: []string{"(gpuslice, kube-system)", "--system-namespace"}},
		{name: "of which one is named", namespace: "kube-system", may: all, pods: []*v1.Pod{agent("gpuslice"), agent("kube-system")}, want: []string{"kube-system/agent-n1"}, others: []string{"gpuslice/agent-n1"}},
		{name: "another namespace", may: all, pods: []*v1.Pod{agent("gpus")}, others: []string{"gpus/agent-n1"}, texts: []string{"in namespace gpuslice-system, gpuslice, kube-system", "not trusted (gpus/agent-n1)", "--system-namespace"}},
		{name: "which is named", namespace: "gpus", may: all, pods: []*v1.Pod{agent("gpus"), agent("gpuslice-system")}, want: []string{"gpus/agent-n1"}, others: []string{"gpuslice-system/agent-n1"}},
		{name: "none where it is named", namespace: "gpus", may: all, texts: []string{"in namespace gpus", "component=agent"}},
		{name: "none", may: all, texts: []string{"no pod has the labels app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=agent"}},
		// Without the right to list all namespaces, the usual ones are searched.
		{name: "with a right in kube-system", may: []string{"kube-system"}, pods: []*v1.Pod{agent("kube-system"), agent("gpus")}, want: []string{"kube-system/agent-n1"}},
		{name: "with a right elsewhere", may: []string{"gpus"}, pods: []*v1.Pod{agent("gpus")}, texts: []string{"no right in ", "--system-namespace"}},
		{name: "which is named, too", namespace: "gpus", may: []string{"gpus"}, pods: []*v1.Pod{agent("gpus")}, want: []string{"gpus/agent-n1"}},
		{name: "without a right in the named one", namespace: "gpus", may: []string{"kube-system"}, pods: []*v1.Pod{agent("kube-system")}, texts: []string{"no right in gpus"}},
		{name: "with a right where nothing is", may: UsualNamespaces, texts: []string{"no right in ", "--system-namespace"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ours, others, err := lister(test.namespace, test.may, test.pods...).servers(t.Context(), componentAgent)
			if test.texts == nil {
				require.NoError(t, err)
			}
			for _, text := range test.texts {
				require.ErrorContains(t, err, text)
			}
			var got []string
			for _, p := range ours {
				got = append(got, p.Namespace+"/"+p.Name)
			}
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.others, others)
		})
	}
}

// A tenant's pod with gpuslice's labels gets no request.
func TestPodsWithForgedLabels(t *testing.T) {
	waiting := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	running := granted(t, "q", "n1", grant.Share{UUID: gpuA, MemoryMiB: 9000})
	agent, fake := serverIn("gpuslice", componentAgent, "n1"), serverIn("a-team", componentAgent, "n1")
	lonely := serverIn("a-team", componentAgent, "n2")
	leader, forged := serverIn("gpuslice", componentScheduler, "n1"), serverIn("a-team", componentScheduler, "n1")
	ready(fake, lonely, forged)
	shares := []view.Share{{UUID: gpuA, MemoryMiB: 9000}}
	c, _ := of(map[string]any{
		"gpuslice/agent-n1:9394/api/v1/view":       view.Node{GPUs: []view.GPU{{UUID: gpuA, Node: "n2"}}},
		"a-team/agent-n1:9394/api/v1/view":         view.Node{GPUs: []view.GPU{{UUID: gpuB}}, Containers: []view.Container{{PodUID: "uid-q", Name: "main", State: "active", Shares: shares}}},
		"a-team/agent-n2:9394/api/v1/view":         view.Node{GPUs: []view.GPU{{UUID: gpuA}}},
		"gpuslice/scheduler-n1:8080/debug/explain": engine.Explanation{Pod: "ns/p", State: engine.ExplainedPending},
		"a-team/scheduler-n1:8080/debug/explain":   engine.Explanation{Pod: "ns/p", State: engine.ExplainedReserved, Text: "all is well"},
	}, node("n1", gpuA), node("n2", gpuB), waiting, running, agent, fake, lonely, leader, forged)
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.GPUs, 2)
	assert.Equal(t, view.GPU{Node: "n1", UUID: gpuA}, n.GPUs[0], "of the node that its agent runs on")
	assert.Equal(t, gpuB, n.GPUs[1].UUID, "by the Node object")
	assert.Empty(t, n.Containers)
	assert.Equal(t, []string{
		"ignored pods with the labels of gpuslice's agent outside of its namespace gpuslice: a-team/agent-n1, a-team/agent-n2",
		"node n2: it has no pod of gpuslice's agent: use is not known, and grants are those of annotations",
	}, n.Problems)
	x, err := c.Explain(t.Context(), "ns", "p")
	require.NoError(t, err)
	assert.Equal(t, engine.ExplainedPending, x.State)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, c.Applied(ended, running, "main", []grant.Share{{UUID: gpuA, MemoryMiB: 9000}}), "is not running")
}

// Without trusted agents the GPUs are shown, with the reason.
func TestViewWithoutAgents(t *testing.T) {
	c, _ := of(nil, node("n1", gpuA), serverIn("gpus", componentAgent, "n1"))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.GPUs, 1)
	require.Len(t, n.Problems, 1)
	assert.Contains(t, n.Problems[0], "--system-namespace")
	assert.Contains(t, n.Problems[0], "GPUs are shown by their Node objects")
}

func TestTwoAgentsOfANode(t *testing.T) {
	first, second := serverIn("gpuslice", componentAgent, "n1"), serverIn("gpuslice", componentAgent, "n1")
	second.Name = "agent-other"
	ready(first)
	answers := map[string]any{"gpuslice/agent-n1:9394/api/v1/view": view.Node{}, "gpuslice/agent-other:9394/api/v1/view": view.Node{}}
	c, _ := of(answers, node("n1", gpuA), first, second)
	n, err := c.View(t.Context())
	require.NoError(t, err)
	assert.Empty(t, n.Problems, "one of them starts")
	ready(second)
	c, _ = of(answers, node("n1", gpuA), first, second)
	n, err = c.View(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"node n1: several agents are ready (pods gpuslice/agent-n1, gpuslice/agent-other); the first one is used"}, n.Problems)
}

func TestSome(t *testing.T) {
	assert.Equal(t, "a, b", some([]string{"a", "b"}))
	assert.Equal(t, "1, 2, 3, 4, 5 and 2 more", some([]string{"1", "2", "3", "4", "5", "6", "7"}))
}

// Of a response that is too large only the limit is read.
func TestResponseLimit(t *testing.T) {
	sent := make(chan int)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/debug/explain") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		all, blank := 0, strings.Repeat(" ", 1<<20)
		for err := error(nil); err == nil && all < 2*maxResponse; {
			var n int
			n, err = io.WriteString(w, blank)
			all += n
		}
		sent <- all
	}))
	defer api.Close()
	c, err := connect(&rest.Config{Host: api.URL}, "ns", "")
	require.NoError(t, err)
	for path, want := range map[string]string{"/api/v1/view": "the response is larger than 32 MiB", "/debug/explain": "error on the server"} {
		err := c.request(t.Context(), server("agent", "n1", "metrics", 9394), "metrics", path, nil, &view.Node{})
		assert.Less(t, <-sent, 2*maxResponse, "%s: except what is in flight", path)
		require.ErrorContains(t, err, want, path)
	}
}

// A cordon in the Node object is shown, and one of the node itself.
func TestCordonsInTheViewOfACluster(t *testing.T) {
	cordoned := func(name, uuids string) *v1.Node {
		n := node(name, gpuA, gpuB)
		n.Annotations[api.AnnotationHAMiCordon] = uuids
		return n
	}
	c, _ := of(map[string]any{"gpuslice/agent-n1:9394/api/v1/view": view.Node{GPUs: []view.GPU{{UUID: gpuA, Healthy: true, Cordoned: true}, {UUID: gpuB, Healthy: true}}}},
		cordoned("n1", gpuB), cordoned("n2", gpuA), cordoned("n3", "not a GPU"), server("agent", "n1", "metrics", 9394), server("agent", "n2", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	got := map[string]bool{}
	for _, gpu := range n.GPUs {
		got[gpu.Node+" "+gpu.UUID] = gpu.Cordoned
	}
	assert.Equal(t, map[string]bool{"n1 " + gpuA: true, "n1 " + gpuB: true, "n2 " + gpuA: true, "n2 " + gpuB: false, "n3 " + gpuA: false, "n3 " + gpuB: false}, got)
	require.Len(t, n.Problems, 3)
	assert.Contains(t, n.Problems[0], "node n2: its agent (pod gpuslice/agent-n2) does not answer")
	assert.Contains(t, n.Problems[1], "node n3: it has no pod of gpuslice's agent")
	assert.Contains(t, n.Problems[2], `annotation hami.io/device-cordon: "not a GPU": must be a GPU's UUID`)
}

// An unhealthy GPU has a reason, also without an agent.
func TestUnhealthyGPUWithoutAnAgent(t *testing.T) {
	sick := node("n1", gpuA)
	sick.Annotations[api.AnnotationNodeGPUs] = strings.ReplaceAll(sick.Annotations[api.AnnotationNodeGPUs], `"healthy":true`, `"healthy":false`)
	c, _ := of(nil, sick, server("agent", "n1", "metrics", 9394))
	n, err := c.View(t.Context())
	require.NoError(t, err)
	require.Len(t, n.GPUs, 1)
	assert.False(t, n.GPUs[0].Healthy)
	assert.Equal(t, "by its Node object; the reason is in the log of its node's agent", n.GPUs[0].Unhealthy)
}

// The answer of a node's agent, or of a pod that imitates it, is shown for that node only, and does
// not change the next query.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"name":"x","gpus":[{"node":"n2","uuid":"` + gpuA + `"}],"containers":[{"node":"n2","pod":"a/b","shares":[{}]}],"problems":["p"]}`))
	f.Add([]byte(`{"containers":null,"gpus":{}}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"state":"reserved","choice":{},"nodes":[{}]}`))
	p := granted(f, "p", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, _ := of(nil, node("n1", gpuA), server("agent", "n1", "metrics", 9394), server("scheduler", "n1", "http", 9395), p)
	f.Fuzz(func(t *testing.T, body []byte) {
		c.get = func(context.Context, string, string, string, map[string]string) ([]byte, error) { return body, nil }
		n, err := c.View(t.Context())
		require.NoError(t, err)
		for _, gpu := range n.GPUs {
			require.Equal(t, "n1", gpu.Node)
		}
		for _, container := range n.Containers {
			require.Equal(t, "n1", container.Node)
		}
		_, _, err = c.Node(t.Context(), "n1")
		require.NoError(t, err)
		_, _ = c.Explain(t.Context(), "ns", "p")
		_, _ = c.applied(t.Context(), p, "main", []grant.Share{{UUID: gpuA, MemoryMiB: 1}})
		resized := p.DeepCopy()
		resized.Annotations[api.AnnotationResizeStatus] = string(body)
		_, _ = answer(resized, "request")
	})
}
