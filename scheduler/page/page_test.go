package page

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	shell "github.com/gpuslice/gpuslice/internal/htmlpage"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func gpu(index int) engine.GPUState {
	return engine.GPUState{GPU: scheduler.GPU{
		UUID: fmt.Sprint("GPU-", index), Model: "NVIDIA H200", Index: index, MemoryMiB: 4096, Cores: 100, Replicas: 10, Healthy: true,
	}}
}

// texts are the rows' texts, with their warnings.
func texts(table shell.Table) (all []string) {
	for _, row := range table.Rows {
		var cells []string
		for _, c := range row {
			cells = append(cells, strings.TrimSpace(c.Text+" "+c.Warning))
		}
		all = append(all, strings.Join(cells, " | "))
	}
	return all
}

func TestNode(t *testing.T) {
	a, b, c := gpu(0), gpu(1), gpu(2)
	a.Used = scheduler.Use{MemoryMiB: 1024, Cores: 30, Replicas: 2}
	b.Used, b.Cordoned = scheduler.Use{MemoryMiB: 5120}, true
	c.Healthy = false
	s := node(engine.NodeState{Name: "n&1", Registered: true, GPUs: []engine.GPUState{a, b, c}, Pods: []engine.PodState{
		{Pod: "d/other", Phase: "bound", Containers: [][]grant.Share{{{UUID: "GPU-9", MemoryMiB: 1024}}}},
		{Pod: "d/late", Phase: "reserved", Owner: "plugin/u", Containers: [][]grant.Share{nil, {{UUID: "GPU-1", MemoryMiB: 2048, CorePercent: 20}}}},
		{Pod: "d/two", Phase: "bound", Containers: [][]grant.Share{{{UUID: "GPU-0", MemoryMiB: 512}, {UUID: "GPU-1", MemoryMiB: 512}}}},
	}})
	assert.Empty(t, s.Warning)
	assert.Equal(t, []shell.Link{{Text: "only this node", Query: "?node=n%261"}}, s.Links)
	assert.Equal(t, []string{
		"0: NVIDIA H200 | 1.00 GiB of 4.00 GiB | 30 of 100 %",
		"1: NVIDIA H200 cordoned | 5.00 GiB of 4.00 GiB overcommitted | 0 of 100 %",
		"2: NVIDIA H200 not healthy | 0 GiB of 4.00 GiB | 0 of 100 %",
	}, texts(s.Tables[0]))
	assert.Equal(t, []shell.Bar{{Of: 4096, Parts: []shell.Part{{Kind: shell.Granted, Value: 1024}}}}, s.Tables[0].Rows[0][1].Bars)
	assert.Equal(t, []string{
		"d/other | GPU-9 not a GPU of this node | 1.00 GiB",
		"d/two | 0: NVIDIA H200 | 0.50 GiB",
		"d/late | 1: NVIDIA H200 | 2.00 GiB, 20 % of compute time",
		"d/two | 1: NVIDIA H200 | 0.50 GiB",
	}, texts(s.Tables[1]))
	assert.Equal(t, []string{"reserved by plugin/u"}, s.Tables[1].Rows[2][0].Notes)

	gone := node(engine.NodeState{Name: "n"})
	assert.Equal(t, "gone", gone.Warning)
	assert.Len(t, gone.Tables, 1)
}

func TestPending(t *testing.T) {
	s := pending([]engine.Pending{
		{Pod: "d/a", Since: now.Add(-90 * time.Minute), Reason: "CardInsufficientMemory", Text: "0 of 1 node", Fragmented: true},
		{Pod: "d/b", Since: now.Add(time.Second), Reason: "Fits", Text: "it fits"},
	}, 7, now)
	assert.Equal(t, "The oldest 2 of 7.", s.Lead)
	assert.Equal(t, []string{"d/a | 0 of 1 node The memory is free, but not on one GPU: it is fragmented.", "d/b | it fits"}, texts(s.Tables[0]))
	assert.Equal(t, []string{"for 1 h", "CardInsufficientMemory"}, s.Tables[0].Rows[0][0].Notes)
	assert.Equal(t, []string{"for 0 s", "Fits"}, s.Tables[0].Rows[1][0].Notes)
}

// However large the cluster is, a page is not: each node is on one page, and the pages lead to each other.
func TestPages(t *testing.T) {
	var s engine.State
	for i := range 120 {
		s.Nodes = append(s.Nodes, engine.NodeState{Name: fmt.Sprintf("node-%03d", i), Registered: true, GPUs: []engine.GPUState{gpu(0)}})
	}
	var shown []string
	for number, links := range map[int][]string{1: {"?page=2"}, 2: {"?page=1", "?page=3"}, 3: {"?page=2"}} {
		p := describe(s, nil, 0, number, now)
		assert.Equal(t, "120 nodes, 120 GPUs, 0 pods pending", p.Lead)
		var queries []string
		for _, l := range p.Sections[len(p.Sections)-1].Links {
			queries = append(queries, l.Query)
		}
		assert.Equal(t, links, queries)
		for _, section := range p.Sections {
			if strings.HasPrefix(section.Title, "node-") {
				shown = append(shown, section.Title)
			}
		}
	}
	assert.Len(t, shown, 120)
	first := describe(s, nil, 0, 1, now)
	for _, number := range []int{-5, 0} {
		assert.Equal(t, first, describe(s, nil, 0, number, now))
	}
	assert.Equal(t, describe(s, nil, 0, 3, now), describe(s, nil, 0, 1<<60, now))
}

func TestProblemsAreLimited(t *testing.T) {
	all := []engine.Problem{{Node: "n", Text: "a"}, {Pod: "d/p", Text: "b"}}
	assert.Equal(t, []string{"n: a", "d/p: b"}, problems(all))
	all = make([]engine.Problem, maxProblems+5)
	got := problems(all)
	require.Len(t, got, maxProblems+1)
	assert.Equal(t, "and 5 more: see /debug/state", got[maxProblems])
}

// The whole path, from an engine, with a pod name that a tenant chose.
func TestHandler(t *testing.T) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(&scheduler.Node{Name: "n", Annotations: map[string]string{"hami.io/node-nvidia-register": `[{"id":"GPU-00000000-0000-4000-8000-000000000000","count":10,"devmem":4096,"devcore":100,"type":"NVIDIA <i>","health":true}]`}})
	e.SetPod(&scheduler.Pod{UID: "u", Namespace: "d", Name: "<b>big</b>", Containers: []scheduler.Container{{Name: "c", Resources: map[string]scheduler.Amount{
		"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 8192}}}}})
	get := func(ready func() error, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		Handler(e, ready).ServeHTTP(w, httptest.NewRequest("GET", "/"+query, nil))
		return w
	}
	w := get(nil, "")
	assert.Equal(t, 200, w.Code)
	for _, want := range []string{"1 node, 1 GPU, 1 pod pending", "d/&lt;b&gt;big&lt;/b&gt;", "1 with less than 8192 MiB free (most: 4096 MiB)", "NVIDIA &lt;i&gt;"} {
		assert.Contains(t, w.Body.String(), want)
	}
	assert.NotContains(t, w.Body.String(), "<b>")
	assert.Contains(t, get(nil, "?node=other").Body.String(), "0 nodes")
	w = get(func() error { return errors.New("pods are being read") }, "")
	assert.Equal(t, 503, w.Code)
	assert.Contains(t, w.Body.String(), "pods are being read")
	assert.Contains(t, w.Body.String(), "1 node, 1 GPU")
}
