package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
)

func TestPreFilter(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	for _, tc := range []struct {
		name string
		pod  *v1.Pod
		code fwk.Code
		want string
	}{
		{"requests a GPU", gpuPod("a", 1000, 0), fwk.Success, ""},
		{"requests no GPU", plainPod("b"), fwk.Skip, ""},
		{"makes no sense", gpuPod("c", 0, 150), fwk.UnschedulableAndUnresolvable, `container "main": nvidia.com/gpucores: 150`},
		{"is not a whole number", with(gpuPod("d", 0, 0), func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits["nvidia.com/gpumem"] = resource.MustParse("1500m")
		}), fwk.UnschedulableAndUnresolvable, "1500m is not a whole number"},
		{"names a policy that there is not", with(gpuPod("e", 1000, 0), func(p *v1.Pod) {
			p.Annotations = map[string]string{"hami.io/node-scheduler-policy": "best"}
		}), fwk.UnschedulableAndUnresolvable, "best"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := w.preFilter(t, tc.pod)
			require.Equal(t, tc.code, status.Code(), status.Message())
			require.Contains(t, status.Message(), tc.want)
			require.Equal(t, tc.code == fwk.Success, cycleOf(w.state) != nil)
		})
	}
}

func TestFilter(t *testing.T) {
	sick := gpuNode("sick", 1, 3)
	sick.Annotations["hami.io/device-cordon"] = gpu(3)
	w := newWorld(t, "", gpuNode("free", 1, 1), gpuNode("full", 1, 2), sick)
	w.placed(t, gpuPod("other", 79000, 0), "full")
	pod := gpuPod("a", 2000, 0)
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "free"))
	require.Equal(t, fwk.Unschedulable, w.filter(t, w.state, pod, "full"), "another pod has the GPU")
	require.Equal(t, fwk.UnschedulableAndUnresolvable, w.filter(t, w.state, pod, "sick"), "no pod has it")
	require.Equal(t, fwk.UnschedulableAndUnresolvable, w.filter(t, w.state, pod, "unknown"))
	require.Equal(t, fwk.Error, w.filter(t, newState(), pod, "free"), "a profile that has the plugin only at Filter")

	big := gpuPod("big", 0, 0)
	big.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("2")
	require.True(t, w.preFilter(t, big).IsSuccess())
	require.Equal(t, fwk.UnschedulableAndUnresolvable, w.filter(t, w.state, big, "full"), "the node has one GPU")
}

// What kube-scheduler's preemption does: on a copy of the state it takes pods away, asks,
// and puts them back one by one.
func TestPreemption(t *testing.T) {
	for _, tc := range []struct {
		name            string
		memory, cores   int64 // of those that are there
		wanted, wanted2 int64
	}{
		{"only by memory", 30000, 0, 40000, 0},
		{"only by cores", 1000, 40, 1000, 50},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, "", gpuNode("n1", 1, 1))
			a, b := w.placed(t, gpuPod("a", tc.memory, tc.cores), "n1"), w.placed(t, gpuPod("b", tc.memory, tc.cores), "n1")
			pod := gpuPod("p", tc.wanted, tc.wanted2)
			require.True(t, w.preFilter(t, pod).IsSuccess())
			require.Equal(t, fwk.Unschedulable, w.filter(t, w.state, pod, "n1"))

			dry := w.state.Clone()
			require.True(t, w.RemovePod(t.Context(), dry, pod, podInfo{pod: a}, on("n1")).IsSuccess())
			require.True(t, w.RemovePod(t.Context(), dry, pod, podInfo{pod: b}, on("n1")).IsSuccess())
			require.Equal(t, fwk.Success, w.filter(t, dry, pod, "n1"))
			require.True(t, w.AddPod(t.Context(), dry, pod, podInfo{pod: b}, on("n1")).IsSuccess())
			require.Equal(t, fwk.Success, w.filter(t, dry, pod, "n1"), "b may stay")
			require.True(t, w.AddPod(t.Context(), dry, pod, podInfo{pod: a}, on("n1")).IsSuccess())
			require.Equal(t, fwk.Unschedulable, w.filter(t, dry, pod, "n1"))

			require.Equal(t, fwk.Unschedulable, w.filter(t, w.state, pod, "n1"), "that was but a copy")
		})
	}
}

// kube-scheduler counts the nodes of each reason. Only the most frequent one was shown.
func TestRejectionHasEachReason(t *testing.T) {
	node := gpuNode("n1", 3, 1)
	node.Annotations[api.AnnotationNodeGPUs] = strings.Replace(node.Annotations[api.AnnotationNodeGPUs], `"healthy":true`, `"healthy":false`, 1)
	w := newWorld(t, "", node)
	pod := gpuPod("p", 1000, 0)
	pod.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu(1)}
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.Equal(t, []string{"node(s): GPUs are not healthy", "node(s): GPUs are excluded by UUID"},
		w.Filter(t.Context(), w.state, pod, on("n1")).Reasons())
}

func TestNominatedPodKeepsItsGPUs(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	pod, nominated := gpuPod("p", 50000, 0), gpuPod("nominated", 50000, 0)
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n1"))
	added := w.state.Clone()
	require.True(t, w.AddPod(t.Context(), added, pod, podInfo{pod: nominated}, on("n1")).IsSuccess())
	require.Equal(t, fwk.Unschedulable, w.filter(t, added, pod, "n1"))

	for name, other := range map[string]*v1.Pod{"requests nothing": plainPod("x"), "invalid request": gpuPod("y", 0, 150)} {
		t.Run(name, func(t *testing.T) {
			added := w.state.Clone()
			require.True(t, w.AddPod(t.Context(), added, pod, podInfo{pod: other}, on("n1")).IsSuccess())
			require.Equal(t, fwk.Success, w.filter(t, added, pod, "n1"))
		})
	}
}

func TestSignPod(t *testing.T) {
	w := newWorld(t, "")
	sign := func(pod *v1.Pod) []fwk.SignFragment {
		fragments, status := w.SignPod(t.Context(), pod)
		require.True(t, status.IsSuccess())
		return fragments
	}
	require.Equal(t, sign(gpuPod("a", 1000, 0)), sign(gpuPod("b", 1000, 0)))
	require.NotEqual(t, sign(gpuPod("a", 1000, 0)), sign(gpuPod("b", 2000, 0)))
	require.NotEqual(t, sign(gpuPod("a", 1000, 0)), sign(with(gpuPod("b", 1000, 0), func(p *v1.Pod) { p.Namespace = "other" })), "its quota is another one")
	require.NotEqual(t, sign(gpuPod("a", 1000, 0)), sign(member(gpuPod("b", 1000, 0), "g", 2)), "its group has a domain")
	require.NotEqual(t, sign(member(gpuPod("a", 1000, 0), "h", 2)), sign(member(gpuPod("b", 1000, 0), "g", 2)))
	require.Empty(t, sign(plainPod("c")))
	_, status := w.SignPod(t.Context(), gpuPod("d", 0, 150))
	require.Equal(t, fwk.Unschedulable, status.Code())
}

func TestScores(t *testing.T) {
	w := newWorld(t, "", gpuNode("empty", 2, 1), gpuNode("fuller", 2, 3))
	w.placed(t, gpuPod("other", 10000, 10), "fuller")
	for _, tc := range []struct {
		policy, best string
	}{{"binpack", "fuller"}, {"spread", "empty"}} {
		t.Run(tc.policy, func(t *testing.T) {
			pod := with(gpuPod("p", 1, 0), func(p *v1.Pod) {
				p.Annotations = map[string]string{"hami.io/node-scheduler-policy": tc.policy}
			})
			require.True(t, w.preFilter(t, pod).IsSuccess())
			require.True(t, w.PreScore(t.Context(), w.state, pod, nil).IsSuccess())
			var scores fwk.NodeScoreList
			for _, node := range []string{"empty", "fuller"} {
				score, status := w.Score(t.Context(), w.state, pod, on(node))
				require.True(t, status.IsSuccess())
				scores = append(scores, fwk.NodeScore{Name: node, Score: score})
			}
			require.True(t, w.ScoreExtensions().NormalizeScore(t.Context(), w.state, pod, scores).IsSuccess())
			for _, s := range scores {
				want := fwk.MinScore
				if s.Name == tc.best {
					want = fwk.MaxScore
				}
				require.Equal(t, want, s.Score, s.Name)
			}
		})
	}
	require.True(t, w.PreScore(t.Context(), newState(), plainPod("x"), nil).IsSkip())
	one := fwk.NodeScoreList{{Name: "a", Score: 7}}
	require.True(t, w.NormalizeScore(t.Context(), newState(), nil, one).IsSuccess())
	require.Equal(t, fwk.MaxScore, one[0].Score)
	require.True(t, w.NormalizeScore(t.Context(), newState(), nil, nil).IsSuccess())
}

func TestPostFilterReasons(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 2, 1))
	w.placed(t, gpuPod("other", 70000, 0), "n1")
	pod := gpuPod("p", 79000, 0)
	pod.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu(1) + "," + gpu(2)}
	w.placed(t, gpuPod("more", 70000, 0), "n1")
	require.True(t, w.preFilter(t, pod).IsSuccess())
	_, status := w.PostFilter(t.Context(), w.state, pod, nil)
	require.Equal(t, fwk.Unschedulable, status.Code())
	require.Contains(t, status.Message(), "n1: 2 GPUs: 2 with less than 79000 MiB free (most: 10000 MiB)")
	_, status = w.PostFilter(t.Context(), newState(), plainPod("x"), nil)
	require.Equal(t, fwk.Unschedulable, status.Code())
	require.Empty(t, status.Message())
}

func TestForgedGrantOfPendingPod(t *testing.T) {
	forged := gpuPod("forged", 1000, 0)
	forged.Annotations = map[string]string{api.AnnotationGrant: `{"version":1,"node":"n1","containers":{"main":[{"uuid":"` + gpu(1) + `","memoryMiB":80000,"cores":100}]}}`}
	w := newWorld(t, "", gpuNode("n1", 1, 1), forged)
	require.Empty(t, w.engine.AllocatedNode(string(forged.UID)))
	require.True(t, w.preFilter(t, forged).IsSuccess())
	require.True(t, w.Reserve(t.Context(), w.state, forged, "n1").IsSuccess())
	require.EqualValues(t, 1000, cycleOf(w.state).placement.Containers[0][0].MemoryMiB, "what it requests, not its annotation")
}

// The nodes that PreFilter names are those with GPUs, as they come and go.
func TestPreFilterReturnsNodesWithGPUs(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	named := func() []string {
		result, status := w.PreFilter(t.Context(), newState(), gpuPod("a", 1000, 0), nil)
		require.True(t, status.IsSuccess())
		if result == nil {
			return nil
		}
		return sets.List(result.NodeNames)
	}
	require.Equal(t, []string{"n1"}, named())
	w.engine.SetNode(convert.Node(gpuNode("n2", 1, 2)))
	require.Equal(t, []string{"n1", "n2"}, named())
	w.placed(t, gpuPod("other", 1000, 0), "n2")
	require.Equal(t, []string{"n1", "n2"}, named())
	w.engine.SetNode(&scheduler.Node{Name: "n1"})
	require.Equal(t, []string{"n2"}, named())
	w.engine.DeleteNode("n2")
	require.Nil(t, named(), "without such nodes, Filter returns the reason for each node")
}
