package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// TestEqualStatesGiveEqualPlaces has two engines of the same cluster. The second one has it in another order, and after nodes, pods and
// requests that are gone: it places each pod on the same GPUs.
func TestEqualStatesGiveEqualPlaces(t *testing.T) {
	placed := 0
	rapid.Check(t, func(t *rapid.T) {
		o := Options{NodePolicy: rapid.SampledFrom([]string{"binpack", "spread", "topology-aware"}).Draw(t, "node policy"),
			GPUPolicy: rapid.SampledFrom([]string{"", "binpack", "spread", "topology-aware", "numa", "tencent"}).Draw(t, "GPU policy")}
		first, second := newEngine(t, o), newEngine(t, o)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		nodes := rapid.IntRange(1, 2*chunkSize).Draw(t, "nodes")
		var events []func(*Engine)
		for i := range nodes {
			n := nodeOf(nodeName(i), h100s(i, rapid.SampledFrom([]int{1, 2, 4, 4}).Draw(t, "GPUs"))...)
			events = append(events, func(e *Engine) { e.SetNode(n) })
		}
		for i := range rapid.IntRange(0, 10).Draw(t, "bound") {
			node := rapid.IntRange(0, nodes-1).Draw(t, "node")
			p := podOf(fmt.Sprint("bound", i), fmt.Sprintf("1/%d/10", rapid.IntRange(1, 7).Draw(t, "memory")*1000))
			of := newEngine(t, o)
			of.SetNode(nodeOf(nodeName(node), h100(node, 0)))
			p = place(t, of, p, nodeName(node))
			events = append(events, func(e *Engine) { e.SetPod(p) })
		}
		for _, event := range events {
			event(first)
		}
		for i := range 3 {
			gone := nodes + random.IntN(chunkSize)
			second.SetNode(nodeOf(nodeName(gone), h100s(gone, 2)...))
			p := podOf(fmt.Sprint("gone", i), "1/5000/20")
			second.SetPod(place(t, second, p, nodeName(gone)))
			placedOn(t, second, podOf(fmt.Sprint("asked", i), fmt.Sprintf("1/%d/0", i+1)))
			second.DeletePod(fmt.Sprint("asked", i))
			second.DeletePod(p.UID)
			second.DeleteNode(nodeName(gone))
		}
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for _, event := range events {
			event(second)
		}
		for i := range rapid.IntRange(1, 10).Draw(t, "pods") {
			p := podOf(fmt.Sprint("u", i), rapid.SampledFrom([]string{"1/8000/10", "2/-50/0", "1/0/100", "4/1000/5"}).Draw(t, "shape"))
			want, got := placedOn(t, first, p), placedOn(t, second, p)
			require.Equal(t, want, got)
			if want != nil {
				placed++
			}
		}
	})
	require.NotZero(t, placed)
}

// placedOn reserves the best place of the pod. It is nil if there is none.
func placedOn(t tester, e *Engine, p *scheduler.Pod) *scheduler.Placement {
	t.Helper()
	r := requestOf(t, e, p)
	best := e.Evaluate(e.Snapshot(), p, r).Best(3, func(string) bool { return true })
	if len(best) == 0 {
		return nil
	}
	placement, err := e.Reserve(p, r, best[0], "test")
	if err != nil {
		t.Fatalf("reserve: %v", err)
	}
	e.SetPod(bindTo(given(t, p, placement), placement.Node))
	return &placement
}

// nodeSort is what nodes have in common except UUIDs: the change of the first GPU, the GPUs, and their links.
type nodeSort struct {
	change, gpus int
	links        string
	hami         bool
}

// node is the i-th node, registered by our agent or by HAMi's device plugin.
func (s nodeSort) node(t tester, i int, change func(*scheduler.GPU)) *scheduler.Node {
	t.Helper()
	gpus := h100s(i, s.gpus)
	change(&gpus[0])
	n := nodeOf(nodeName(i), gpus...)
	links := linksOf(s.links, s.gpus)
	if !s.hami {
		var all api.NodeGPUs
		err := json.Unmarshal([]byte(n.Annotations[api.AnnotationNodeGPUs]), &all)
		if err != nil {
			t.Fatalf("node: %v", err)
		}
		all.Links = links
		n.Annotations[api.AnnotationNodeGPUs] = encoded(t, all)
		return n
	}
	delete(n.Annotations, api.AnnotationNodeGPUs)
	var list []api.HAMiGPU
	var scores []api.HAMiScore
	for j, g := range gpus {
		list = append(list, api.HAMiGPU{ID: g.UUID, Index: g.Index, Count: g.Replicas, Memory: g.MemoryMiB, Core: g.Cores, Type: g.Model, NUMA: g.NUMA,
			Mode: g.Mode, Health: g.Healthy})
		if links != nil {
			score := api.HAMiScore{UUID: g.UUID, Scores: map[string]int{}}
			for k, other := range gpus {
				score.Scores[other.UUID] = links[j][k]
			}
			scores = append(scores, score)
		}
	}
	n.Annotations[api.AnnotationHAMiRegister] = encoded(t, list)
	if links != nil {
		n.Annotations[api.AnnotationHAMiScore] = encoded(t, scores)
	}
	return n
}

// linksOf are PCIe links, and with "pairs" and "switch" NVLink between pairs or all.
func linksOf(kind string, n int) [][]int {
	if kind == "" {
		return nil
	}
	links := make([][]int, n)
	for i := range links {
		links[i] = make([]int, n)
		for j := range links[i] {
			switch {
			case i == j:
			case kind == "switch" || kind == "pairs" && i/2 == j/2:
				links[i][j] = 1820
			default:
				links[i][j] = 20
			}
		}
	}
	return links
}

func encoded(t tester, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("annotation: %v", err)
	}
	return string(data)
}

// TestEqualNodes compares the verdict on each of many nodes, most of them equal, with that of an engine that has only this
// node.
func TestEqualNodes(t *testing.T) {
	equal, fits, ofHAMi, several := 0, 0, 0, 0
	topologyAware := map[string]string{api.AnnotationGPUPolicy: "topology-aware", api.AnnotationNodePolicy: "topology-aware"}
	rapid.Check(t, func(t *rapid.T) {
		many := newEngine(t, Options{})
		changes := []func(*scheduler.GPU){
			func(*scheduler.GPU) {},
			func(g *scheduler.GPU) { g.Model = "NVIDIA A100" },
			func(g *scheduler.GPU) { g.NUMA = 3 },
			func(g *scheduler.GPU) { g.MemoryMiB++ },
			func(g *scheduler.GPU) { g.Cores = 50 },
			func(g *scheduler.GPU) { g.Replicas = 1 },
			func(g *scheduler.GPU) { g.Mode = api.ModeMIG },
			func(g *scheduler.GPU) { g.Healthy = false },
			func(g *scheduler.GPU) { g.Cordoned = true },
			// HAMi registers neither of these.
			func(g *scheduler.GPU) { g.Isolation = grant.IsolationDriver },
			func(g *scheduler.GPU) { g.Others = scheduler.Use{MemoryMiB: 70000, Replicas: 1} },
		}
		// Each sort differs from the first one in one thing.
		s := nodeSort{gpus: 2}
		change := func() { s.change = rapid.IntRange(0, len(changes)-1).Draw(t, "change") }
		links := func() { s.links = rapid.SampledFrom([]string{"", "PCIe", "pairs", "switch"}).Draw(t, "links") }
		gpus := func() { s.gpus = rapid.SampledFrom([]int{2, 4}).Draw(t, "GPUs") }
		hami := func() { s.hami = rapid.Bool().Draw(t, "HAMi") }
		for _, draw := range []func(){links, gpus, hami} {
			draw()
		}
		sorts := []nodeSort{s}
		for range rapid.IntRange(0, 3).Draw(t, "sorts") {
			s = sorts[0]
			rapid.SampledFrom([]func(){change, change, links, gpus, hami}).Draw(t, "differs")()
			sorts = append(sorts, s)
		}
		var nodes []*scheduler.Node
		var ones []*Engine // each has one of the nodes
		seen := map[nodeSort]bool{}
		for i := range rapid.IntRange(2, 12).Draw(t, "nodes") {
			s := rapid.SampledFrom(sorts).Draw(t, "sort")
			if seen[s] {
				equal++
			}
			seen[s] = true
			nodes, ones = append(nodes, s.node(t, i, changes[s.change])), append(ones, newEngine(t, Options{}))
			many.SetNode(nodes[i])
			ones[i].SetNode(nodes[i])
			if rapid.Bool().Draw(t, "used") {
				other := podOf(fmt.Sprint("other", i), "1/30000/20")
				if placement := placedOn(t, ones[i], other); placement != nil {
					many.SetPod(bindTo(given(t, other, *placement), placement.Node))
				}
			}
		}
		shape := rapid.SampledFrom([]string{"1/8000/10", "2/8000/0", "1/80000/100", "1/-100/60", "3/1000/10"}).Draw(t, "shape")
		var fitting []int
		for _, annotations := range []map[string]string{nil,
			{api.AnnotationUseUUIDs: uuid(0, 0) + "," + uuid(1, 1)},
			{api.AnnotationAvoidUUIDs: uuid(0, 0)},
			{api.AnnotationUseTypes: "H100"},
			{api.AnnotationNUMABind: "true"},
			{api.AnnotationIsolation: "driver"},
			{api.AnnotationGPUPolicy: "binpack"},
			topologyAware,
		} {
			p := annotated(podOf("u", shape), annotations)
			v := many.Evaluate(many.Snapshot(), p, requestOf(t, many, p))
			fitting = nil
			for i, n := range nodes {
				want, got := ones[i].Evaluate(ones[i].Snapshot(), p, requestOf(t, ones[i], p)).Verdict(n.Name), v.Verdict(n.Name)
				require.Equal(t, *want.outcome, *got.outcome, n.Name)
				if want.Fits {
					fits++
					fitting = append(fitting, i)
				}
			}
		}
		if len(fitting) == 0 {
			return
		}
		i := rapid.SampledFrom(fitting).Draw(t, "reserved")
		p := annotated(podOf("u", shape), topologyAware)
		want, err := ones[i].Reserve(p, requestOf(t, ones[i], p), nodes[i].Name, "test")
		require.NoError(t, err)
		got, err := many.Reserve(p, requestOf(t, many, p), nodes[i].Name, "test")
		require.NoError(t, err)
		require.Equal(t, want, got)
		if got.HAMi {
			ofHAMi++
		}
		if len(got.Containers[0]) > 1 {
			several++
		}
	})
	for _, n := range []int{equal, fits, ofHAMi, several} {
		require.NotZero(t, n)
	}
}
