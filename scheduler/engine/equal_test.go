package engine

import (
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

// TestEqualNodes compares the verdict on each of many nodes, most of them equal, with that of an engine that has only this
// node.
func TestEqualNodes(t *testing.T) {
	equal, fits := 0, 0
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
			func(g *scheduler.GPU) { g.Isolation = grant.IsolationDriver },
			func(g *scheduler.GPU) { g.Healthy = false },
			func(g *scheduler.GPU) { g.Cordoned = true },
			func(g *scheduler.GPU) { g.Others = scheduler.Use{MemoryMiB: 70000, Replicas: 1} },
		}
		var nodes []*scheduler.Node
		var ones []*Engine // each has one of the nodes
		kinds := map[int]bool{}
		for i := range rapid.IntRange(2, 12).Draw(t, "nodes") {
			gpus := h100s(i, 2)
			kind := rapid.IntRange(0, len(changes)-1).Draw(t, "kind")
			changes[kind](&gpus[0])
			if kinds[kind] {
				equal++
			}
			kinds[kind] = true
			nodes, ones = append(nodes, nodeOf(nodeName(i), gpus...)), append(ones, newEngine(t, Options{}))
			many.SetNode(nodes[i])
			ones[i].SetNode(nodes[i])
			if rapid.Bool().Draw(t, "used") {
				other := podOf(fmt.Sprint("other", i), "1/30000/20")
				if placement := placedOn(t, ones[i], other); placement != nil {
					many.SetPod(bindTo(given(t, other, *placement), placement.Node))
				}
			}
		}
		p := annotated(podOf("u", rapid.SampledFrom([]string{"1/8000/10", "2/8000/0", "1/80000/100", "1/-100/60"}).Draw(t, "shape")),
			rapid.SampledFrom([]map[string]string{nil,
				{api.AnnotationUseUUIDs: uuid(0, 0) + "," + uuid(1, 1)},
				{api.AnnotationAvoidUUIDs: uuid(0, 0)},
				{api.AnnotationUseTypes: "H100"},
				{api.AnnotationNUMABind: "true"},
				{api.AnnotationIsolation: "driver"},
			}).Draw(t, "annotations"))
		v := many.Evaluate(many.Snapshot(), p, requestOf(t, many, p))
		for i, n := range nodes {
			want, got := ones[i].Evaluate(ones[i].Snapshot(), p, requestOf(t, ones[i], p)).Verdict(n.Name), v.Verdict(n.Name)
			require.Equal(t, *want.outcome, *got.outcome, n.Name)
			if want.Fits {
				fits++
			}
		}
	})
	require.NotZero(t, equal)
	require.NotZero(t, fits)
}
