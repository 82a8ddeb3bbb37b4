package defrag

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

type tester interface {
	require.TestingT
	Helper()
}

type world struct {
	tester
	*engine.Engine
	pods  map[string]*scheduler.Pod // bound
	fixed map[string]string
	// forbidden are "uid node".
	forbidden map[string]bool
}

func newWorld(t tester, gpusOfNodes ...int) *world {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	w := &world{t, e, map[string]*scheduler.Pod{}, map[string]string{}, map[string]bool{}}
	for i, gpus := range gpusOfNodes {
		w.node(i, gpus)
	}
	return w
}

func (w *world) node(i, gpus int, cordoned ...string) {
	list := []map[string]any{}
	for g := range gpus {
		list = append(list, map[string]any{"uuid": gpu(i, g), "model": "H100", "index": g,
			"memoryMiB": 80000, "cores": 100, "replicas": 10, "mode": "hami-core", "healthy": true})
	}
	text, err := json.Marshal(map[string]any{"version": 1, "gpus": list})
	require.NoError(w, err)
	w.SetNode(&scheduler.Node{Name: fmt.Sprint("n", i), Annotations: map[string]string{
		api.AnnotationNodeGPUs: string(text), api.AnnotationHAMiCordon: strings.Join(cordoned, ",")}})
}

func gpu(node, index int) string { return fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", node, index) }

func pod(uid string, gpus int, mib int64) *scheduler.Pod {
	return &scheduler.Pod{UID: uid, Namespace: "ns", Name: uid, Annotations: map[string]string{}, Containers: []scheduler.Container{{Name: "main",
		Resources: map[string]scheduler.Amount{"nvidia.com/gpu": {Value: int64(gpus)}, "nvidia.com/gpumem": {Value: mib}}}}}
}

func (w *world) place(p *scheduler.Pod, node string) bool {
	r, err := w.Request(p)
	require.NoError(w, err)
	placement, err := w.Reserve(p, r, node, "test")
	if err != nil {
		return false
	}
	w.bound(p, placement)
	return true
}

func (w *world) bound(p *scheduler.Pod, placement scheduler.Placement) {
	more, err := wire.Annotations(p, placement, nil, time.Unix(1_800_000_000, 0))
	require.NoError(w, err)
	next := *p
	next.Node, next.Annotations = placement.Node, maps.Clone(p.Annotations)
	maps.Copy(next.Annotations, more)
	w.SetPod(&next)
	w.pods[p.UID] = &next
}

func (w *world) plan(pending *scheduler.Pod) (Plan, error) {
	in := Input{Engine: w.Engine, Pending: pending, Fixed: func(uid string) string { return w.fixed[uid] },
		Allowed: func(uid, node string) bool { return !w.forbidden[uid+" "+node] }}
	for _, p := range w.pods {
		in.Running = append(in.Running, p)
	}
	return Make(in)
}

func TestMove(t *testing.T) {
	w := newWorld(t, 1, 1)
	require.True(t, w.place(pod("a", 1, 30000), "n0"))
	require.True(t, w.place(pod("b", 1, 40000), "n1"))
	pending := pod("p", 1, 60000)
	plan, err := w.plan(pending)
	require.NoError(t, err)
	require.Equal(t, Plan{Pod: "ns/p", Node: "n0", Moves: []Move{{Pod: "ns/a", UID: "a", From: "n0", To: "n1"}},
		GPUs: []string{gpu(0, 0)}}, plan)

	w.fixed["a"] = "no controller"
	plan, err = w.plan(pending)
	require.NoError(t, err)
	require.Equal(t, []Move{{Pod: "ns/b", UID: "b", From: "n1", To: "n0"}}, plan.Moves)
	w.forbidden["b n0"] = true
	_, err = w.plan(pending)
	require.ErrorIs(t, err, ErrNone)
	require.ErrorContains(t, err, "60000 MiB")
	delete(w.forbidden, "b n0")
	w.pods["b"].Priority = 1
	_, err = w.plan(pending)
	require.ErrorIs(t, err, ErrNone, "a more important pod is not disturbed")
	w.pods["b"].Priority, w.pods["b"].Group = 0, "ns/g"
	_, err = w.plan(pending)
	require.ErrorIs(t, err, ErrNone, "nor a group")

	plan, err = w.plan(pod("small", 1, 1000))
	require.NoError(t, err)
	require.Empty(t, plan.Moves, "it fits")
	require.NotEmpty(t, plan.Node)
	_, err = w.plan(&scheduler.Pod{Namespace: "ns", Name: "plain"})
	require.EqualError(t, err, "pod ns/plain requests no GPU")
}

// On one node a pod can move to another GPU.
func TestMoveWithinNode(t *testing.T) {
	w := newWorld(t, 2)
	require.True(t, w.place(pod("a", 1, 30000), "n0"))
	require.True(t, w.place(pod("b", 1, 30000), "n0")) // spread: on the other GPU
	plan, err := w.plan(pod("p", 1, 80000))
	require.NoError(t, err)
	require.Len(t, plan.Moves, 1)
	require.Equal(t, "n0", plan.Moves[0].To)
}

// A pod that replaces a moved one is placed while that one still runs.
func TestPodsComeBackBesideTheRoom(t *testing.T) {
	for _, fixed := range []string{"a", "b"} {
		w := newWorld(t, 2)
		require.True(t, w.place(pod("a", 1, 30000), "n0"))
		require.True(t, w.place(pod("b", 1, 30000), "n0"))
		w.fixed[fixed] = "fixed"
		pending := pod("p", 1, 80000)
		plan, err := w.plan(pending)
		require.NoError(t, err)
		require.Len(t, plan.GPUs, 1)
		require.Len(t, plan.Moves, 1)
		w.node(0, 2, plan.GPUs...)
		require.True(t, w.place(pod("again", 1, 30000), "n0"))
		w.DeletePod(plan.Moves[0].UID)
		w.node(0, 2)
		require.True(t, w.place(pending, "n0"), "without %s", plan.Moves[0].UID)
	}
}

func TestResizeGoesBeforeMoves(t *testing.T) {
	w := newWorld(t, 1, 1)
	a := pod("a", 1, 50000)
	a.Annotations[api.AnnotationMinMemory] = "10000"
	require.True(t, w.place(a, "n0"))
	require.True(t, w.place(pod("b", 1, 20000), "n1"))
	plan, err := w.plan(pod("p", 1, 70000))
	require.NoError(t, err)
	require.Equal(t, Plan{Pod: "ns/p", Node: "n0", Resizes: []Resize{{Pod: "ns/a", UID: "a", MemoryMiB: map[string]int64{"main": 10000}}}}, plan)
}

// The GPUs of a pod with hardware isolation stay whole.
func TestHardwareIsolationIsNotResized(t *testing.T) {
	w := newWorld(t, 1, 1)
	a := pod("a", 1, 50000)
	a.Annotations[api.AnnotationMinMemory] = "10000"
	require.True(t, w.place(a, "n0"))
	require.True(t, w.place(pod("b", 1, 20000), "n1"))
	w.pods["a"].Annotations[api.AnnotationIsolation] = api.IsolationHardware
	plan, err := w.plan(pod("p", 1, 70000))
	require.NoError(t, err)
	require.Empty(t, plan.Resizes)
	require.Len(t, plan.Moves, 1)
}

// A plan that is carried out makes the pending pod fit, and each moved pod is placed again on the node of the plan.
func TestPlan(t *testing.T) {
	plans := 0
	rapid.Check(t, func(t *rapid.T) {
		var gpus []int
		for range rapid.IntRange(1, 4).Draw(t, "nodes") {
			gpus = append(gpus, rapid.IntRange(1, 2).Draw(t, "gpus"))
		}
		w := newWorld(t, gpus...)
		if rapid.Bool().Draw(t, "quota") {
			w.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: rapid.Int64Range(100, 500).Draw(t, "limit") * 1000, Cores: quota.Unlimited}})
		}
		for i := range rapid.IntRange(1, 10).Draw(t, "pods") {
			p := pod(fmt.Sprint("r", i), rapid.IntRange(1, 2).Draw(t, "count"), rapid.Int64Range(1, 7).Draw(t, "size")*10000)
			p.Priority = rapid.Int32Range(0, 2).Draw(t, "priority")
			if rapid.IntRange(0, 3).Draw(t, "resizable") == 0 {
				p.Annotations[api.AnnotationMinMemory] = fmt.Sprint(rapid.Int64Range(1, 8).Draw(t, "least") * 10000)
			}
			if rapid.IntRange(0, 5).Draw(t, "fixed") == 0 {
				w.fixed[p.UID] = "fixed"
			}
			w.place(p, fmt.Sprint("n", rapid.IntRange(0, len(gpus)-1).Draw(t, "node")))
		}
		for uid := range w.pods {
			for i := range gpus {
				w.forbidden[fmt.Sprintf("%s n%d", uid, i)] = rapid.IntRange(0, 5).Draw(t, "forbidden") == 0
			}
		}
		pending := pod("pending", rapid.IntRange(1, 2).Draw(t, "count"), rapid.Int64Range(1, 8).Draw(t, "size")*10000)
		pending.Priority = 1
		plan, err := w.plan(pending)
		if err != nil {
			require.ErrorIs(t, err, ErrNone)
			return
		}
		if len(plan.Moves)+len(plan.Resizes) > 0 {
			plans++
		}
		require.False(t, len(plan.Moves) > 0 && len(plan.Resizes) > 0)
		for _, m := range plan.Moves {
			p := w.pods[m.UID]
			require.Equal(t, m.From, p.Node)
			require.LessOrEqual(t, p.Priority, pending.Priority)
			require.Empty(t, w.fixed[m.UID])
			require.False(t, w.forbidden[m.UID+" "+m.To])
			w.DeletePod(m.UID)
		}
		for _, r := range plan.Resizes {
			wanted := map[string]grant.Wanted{}
			for container, mib := range r.MemoryMiB {
				wanted[container] = grant.Wanted{MemoryMiB: &mib}
			}
			placement, err := w.Resize(w.pods[r.UID], wanted)
			require.NoError(t, err)
			w.bound(w.pods[r.UID], placement)
		}
		require.True(t, w.place(pending, plan.Node), "the pending pod")
		for _, m := range plan.Moves {
			p := *w.pods[m.UID]
			p.UID, p.Node = m.UID+"-again", ""
			require.True(t, w.place(&p, m.To), "a moved pod")
		}
	})
	require.NotZero(t, plans)
}
