package plugin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/convert"
)

// many is a world with so many nodes with a GPU, in the order of their names. On the first used of them a pod has a part.
func many(t *testing.T, n, used int) (*world, []fwk.NodeInfo) {
	w := newWorld(t, "")
	var infos []fwk.NodeInfo
	for i := range n {
		object := gpuNode(fmt.Sprintf("n%03d", i), 1, i)
		object.Labels = map[string]string{"i": fmt.Sprint(i)}
		require.NoError(t, w.factory.Core().V1().Nodes().Informer().GetStore().Add(object))
		w.engine.SetNode(convert.Node(object))
		infos = append(infos, &nodeInfo{node: object, generation: int64(i + 1)})
		if i < used {
			w.placed(t, gpuPod(fmt.Sprint("used", i), 1000, 0), object.Name)
		}
	}
	return w, infos
}

func (w *world) namedFor(t *testing.T, pod *v1.Pod, infos []fwk.NodeInfo) []string {
	t.Helper()
	w.state = newState()
	result, status := w.PreFilter(t.Context(), w.state, pod, infos)
	require.True(t, status.IsSuccess(), status.Message())
	return sets.List(result.NodeNames)
}

func numbered(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	return names
}

func TestBestNodesAreNamed(t *testing.T) {
	w, infos := many(t, 100, 40)
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := gpuPod("p", 1000, 0)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1"), "ephemeral-storage": resource.MustParse("1")}
		if change != nil {
			change(p)
		}
		return p
	}
	require.Equal(t, numbered(0, 32), w.namedFor(t, pod(nil), infos))
	require.Equal(t, numbered(68, 100), func() []string {
		for i := range 20 { // the others are equal
			w.placed(t, gpuPod(fmt.Sprint("more", i), 2000, 0), fmt.Sprintf("n%03d", 99-i))
		}
		for i := range 12 {
			w.placed(t, gpuPod(fmt.Sprint("same", i), 2000, 0), fmt.Sprintf("n%03d", 79-i))
		}
		return w.namedFor(t, pod(nil), infos)
	}())

	// What other plugins would refuse or dislike.
	change := func(i int, change func(*nodeInfo)) { change(infos[i].(*nodeInfo)) }
	change(99, func(n *nodeInfo) { n.node.Spec.Unschedulable = true })
	change(98, func(n *nodeInfo) { n.requested.cpu = 7001 })
	change(97, func(n *nodeInfo) { n.requested.memory = 8000 })
	change(96, func(n *nodeInfo) { n.requested.storage = 8000 })
	change(95, func(n *nodeInfo) {
		for i := range 10 {
			n.pods = append(n.pods, plainPod(fmt.Sprint("plain", i)))
		}
	})
	change(94, func(n *nodeInfo) { n.node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}} })
	change(93, func(n *nodeInfo) { n.node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectPreferNoSchedule}} })
	for i := 93; i < 100; i++ {
		infos[i].(*nodeInfo).generation += 1000
	}
	names := w.namedFor(t, pod(nil), infos)
	require.Equal(t, append(numbered(0, 7), numbered(68, 93)...), names)
	tolerates := pod(func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} })
	require.Subset(t, w.namedFor(t, tolerates, infos), []string{"n093", "n094"})

	selects := pod(func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"i": "50"} })
	require.Equal(t, []string{"n050"}, w.namedFor(t, selects, infos))
	term := func(weight int32, values ...string) v1.PreferredSchedulingTerm {
		return v1.PreferredSchedulingTerm{Weight: weight, Preference: v1.NodeSelectorTerm{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "i", Operator: v1.NodeSelectorOpIn, Values: values}}}}
	}
	prefers := func(terms ...v1.PreferredSchedulingTerm) *v1.Pod {
		return pod(func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
		})
	}
	withPreferred := append(numbered(50, 52), names[7:]...)
	require.Equal(t, withPreferred, w.namedFor(t, prefers(term(1, "50", "51")), infos)[7:])
	require.Equal(t, withPreferred, w.namedFor(t, prefers(term(1, "50", "51"), term(2, "99", "98", "94")), infos)[7:],
		"of the nodes that it prefers most, one is cordoned, one is full and one has a taint")

	image := func(bytes int64) func(*nodeInfo) {
		return func(n *nodeInfo) {
			n.node = n.node.DeepCopy()
			n.node.Status.Images = []v1.ContainerImage{{Names: []string{"example.com/a:latest"}, SizeBytes: bytes}}
			n.images = map[string]*fwk.ImageStateSummary{"example.com/a:latest": {Size: bytes}}
			n.generation += 1000
		}
	}
	change(60, image(1<<30))
	change(61, image(1<<20))
	withImage := w.namedFor(t, pod(func(p *v1.Pod) { p.Spec.Containers[0].Image = "example.com/a" }), infos)
	require.Contains(t, withImage, "n060")
	require.NotContains(t, withImage, "n061")

	spreads := pod(func(p *v1.Pod) { p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: "i"}} })
	require.Equal(t, numbered(0, 93), w.namedFor(t, spreads, infos), "all that fit")
	claims := pod(func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
	})
	require.Len(t, w.namedFor(t, claims, infos), 93)
	nominated := pod(func(p *v1.Pod) { p.Status.NominatedNodeName = "n099" })
	require.Len(t, w.namedFor(t, nominated, infos), 100)
	grouped := pod(func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{} })
	require.Len(t, w.namedFor(t, grouped, infos), 100)
	require.Equal(t, numbered(40, 68), w.namedFor(t, gpuPod("large", 79500, 0), infos), "those that fit")
	require.Len(t, w.namedFor(t, gpuPod("nowhere", 80001, 0), infos), 100, "all have a reason")
	require.Len(t, w.namedFor(t, pod(func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"i": "x"} }), infos), 100, "all have a reason")
}

// TestSecondTryNamesAll: what a narrow cycle refuses is tried with all nodes, and evicts nothing before.
func TestSecondTryNamesAll(t *testing.T) {
	w, infos := many(t, 40, 0)
	pod := gpuPod("p", 1000, 0)
	require.Len(t, w.namedFor(t, pod, infos), bestNodes)
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n000"))
	evicting := w.state.Clone()
	require.True(t, w.RemovePod(t.Context(), evicting, pod, podInfo{pod: gpuPod("victim", 1, 0)}, on("n000")).IsSuccess())
	require.Equal(t, fwk.Unschedulable, w.filter(t, evicting, pod, "n000"))
	require.Equal(t, fwk.Success, w.filter(t, w.state, pod, "n000"))

	require.Empty(t, w.took())
	_, status := w.PostFilter(t.Context(), w.state, pod, nil)
	require.Equal(t, fwk.Unschedulable, status.Code())
	require.Equal(t, []string{"p"}, w.took(), "it is tried again at once")
	require.Len(t, w.namedFor(t, pod, infos), 40)
	evicting = w.state.Clone()
	require.True(t, w.RemovePod(t.Context(), evicting, pod, podInfo{pod: gpuPod("victim", 1, 0)}, on("n000")).IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, evicting, pod, "n000"))
	_, status = w.PostFilter(t.Context(), w.state, pod, nil)
	require.Equal(t, fwk.Unschedulable, status.Code())
	require.Empty(t, w.took())

	require.True(t, w.Reserve(t.Context(), w.state, pod, "n000").IsSuccess())
	require.Empty(t, w.secondTries.pods, "nothing is kept of placed pods")
	w.secondTries.add(pod)
	w.forget(pod)
	require.Empty(t, w.secondTries.pods, "nor of deleted ones")
}

func TestScoresWithPreferences(t *testing.T) {
	w := newWorld(t, `{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","scoreWithPreferences":20}`, gpuNode("n1", 1, 1))
	normalize := func(pod *v1.Pod, nodes ...fwk.NodeInfo) (all []int64) {
		require.True(t, w.preFilter(t, pod).IsSuccess())
		require.True(t, w.PreScore(t.Context(), w.state, pod, nodes).IsSuccess())
		scores := fwk.NodeScoreList{{Name: "d", Score: 50}, {Name: "c", Score: 100}, {Name: "b", Score: 100}, {Name: "a", Score: 0}}
		require.True(t, w.NormalizeScore(t.Context(), w.state, pod, scores).IsSuccess())
		for _, s := range scores {
			all = append(all, s.Score)
		}
		return all
	}
	usual, less := []int64{50, 99, 100, 0}, []int64{10, 19, 20, 0}
	info := func(change func(*nodeInfo)) *nodeInfo {
		n := on("n1")
		change(n)
		return n
	}
	none, tainted := info(func(*nodeInfo) {}), info(func(n *nodeInfo) { n.node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectPreferNoSchedule}} })
	with := func(bytes int64) *nodeInfo {
		return info(func(n *nodeInfo) { n.images = map[string]*fwk.ImageStateSummary{"a/b:1": {Size: bytes}} })
	}
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := gpuPod("p", 1000, 0)
		p.Spec.Containers[0].Image = "a/b:1"
		change(p)
		return p
	}
	plain := pod(func(*v1.Pod) {})
	require.Equal(t, usual, normalize(plain, none, none))
	require.Equal(t, less, normalize(plain, none, tainted))
	require.Equal(t, usual, normalize(pod(func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} }), none, tainted))
	require.Equal(t, less, normalize(plain, none, with(1<<30)))
	require.Equal(t, usual, normalize(plain, with(1<<30), with(1<<30)))
	require.Equal(t, usual, normalize(plain, none, with(1<<20)), "too small to count")
	yes := true
	require.Equal(t, usual, normalize(pod(func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", UID: "u", Controller: &yes}}
	}), none, with(1<<30)), "it would be spread too, for which no one asked")
	for _, affinity := range []v1.Affinity{
		{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{}}}},
		{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{}}}},
		{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{}}}},
	} {
		require.Equal(t, less, normalize(pod(func(p *v1.Pod) { p.Spec.Affinity = &affinity }), none))
	}
	spread := func(when v1.UnsatisfiableConstraintAction) *v1.Pod {
		return pod(func(p *v1.Pod) {
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{WhenUnsatisfiable: when}}
		})
	}
	require.Equal(t, less, normalize(spread(v1.ScheduleAnyway), none))
	require.Equal(t, usual, normalize(spread(v1.DoNotSchedule), none))
}
