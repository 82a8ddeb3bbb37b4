package extender

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/convert"
)

// used puts a pod on each of these nodes, so that binpack prefers them.
func (w *world) used(nodes ...string) {
	for _, node := range nodes {
		p := convert.Pod(pod(fmt.Sprint("other", rand.Uint64()), 1000, 0))
		r, err := w.engine.Request(p)
		require.NoError(w.t, err)
		_, err = w.engine.Reserve(p, r, node, "test")
		require.NoError(w.t, err)
	}
}

func (w *world) pending(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := pod(name, 1000, 0, change...)
	w.cluster.add(p)
	return p
}

// tainted makes a node one that other pods prefer not to have.
func (w *world) tainted(node string) {
	require.NoError(w.t, w.cluster.nodes.Update(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "old", Effect: v1.TaintEffectPreferNoSchedule}}}}))
}

func prefersZones(p *v1.Pod) {
	p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: "zone", WhenUnsatisfiable: v1.ScheduleAnyway}}
}

// TestFilterReturnsTheBest: kube-scheduler scores what it gets, and nothing if it gets one node.
func TestFilterReturnsTheBest(t *testing.T) {
	w := newWorld(t, 50, 1)
	w.used(w.nodes[10:]...)
	asks := w.pending("p")
	passed, result := w.filter(asks)
	require.Equal(t, w.nodes[10:11], passed)
	require.Empty(t, result.FailedNodes)
	require.Empty(t, result.FailedAndUnresolvableNodes)
	require.Equal(t, w.nodes[10], w.engine.AllocatedNode(string(asks.UID)))

	objects := &v1.NodeList{}
	for _, n := range w.nodes {
		objects.Items = append(objects.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	var answer extenderv1.ExtenderFilterResult
	w.post("/filter", extenderv1.ExtenderArgs{Pod: w.pending("objects"), Nodes: objects}, &answer)
	require.Len(t, answer.Nodes.Items, 1)
	require.Equal(t, w.nodes[10], answer.Nodes.Items[0].Name)

	w = newWorld(t, 50, 1, func(o *Options) { o.BestNodes = 32 })
	w.used(w.nodes[10:]...)
	passed, _ = w.filter(w.pending("p"))
	require.Equal(t, w.nodes[10:42], passed, "kube-scheduler's plugins choose among so many")
}

// TestFilterLeavesPreferencesToOthers: kube-scheduler's plugins compare all nodes for pods that prefer some of them.
func TestFilterLeavesPreferencesToOthers(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"spread": prefersZones,
		"node affinity": func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1}}}}
		},
		"claims": func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "claim"}} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 1)
			passed, _ := w.filter(w.pending("p", change))
			require.Equal(t, w.nodes, passed)
		})
	}
	t.Run("taints", func(t *testing.T) {
		w := newWorld(t, 3, 1)
		w.tainted(w.nodes[0])
		passed, _ := w.filter(w.pending("p"))
		require.Equal(t, w.nodes, passed)
		passed, _ = w.filter(w.pending("tolerates", func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		}))
		require.Len(t, passed, 1)
	})
}

// TestFilterIsDeterministic: equal states give equal places, in whichever order kube-scheduler names the nodes.
func TestFilterIsDeterministic(t *testing.T) {
	var want []string
	for round := range 10 {
		w := newWorld(t, 40, 4)
		w.used(w.nodes[7], w.nodes[9], w.nodes[9])
		random := rand.New(rand.NewPCG(uint64(round), 0))
		var got []string
		for i := range 60 {
			random.Shuffle(len(w.nodes), func(i, j int) { w.nodes[i], w.nodes[j] = w.nodes[j], w.nodes[i] })
			node, why := w.place(pod(fmt.Sprint("p", i), int64(10000*(1+i%5)), int64(10*(i%4))))
			require.NotEmpty(t, node, why)
			got = append(got, node)
		}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
}

// TestBindThatFails: the next answer is another node, also if the API server, or a lock of HAMi's, refuses each node.
func TestBindThatFails(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){"no preferences": func(*v1.Pod) {}, "preferences": prefersZones} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 1)
			w.used(w.nodes[1])
			p := w.pending("p", change)
			w.cluster.bind = apierrors.NewForbidden(v1.Resource("pods"), p.Name, errors.New("a webhook denied it"))
			for range 2 { // when all were tried, all are tried again
				var tried []string
				for range w.nodes {
					w.filter(p)
					node := w.engine.AllocatedNode(string(p.UID))
					require.Contains(t, w.bind(p, node), "a webhook denied it")
					tried = append(tried, node)
				}
				require.Equal(t, w.nodes[1], tried[0])
				slices.Sort(tried)
				require.Equal(t, w.nodes, tried)
			}
			w.cluster.bind = nil
			passed, _ := w.filter(p)
			require.Equal(t, w.nodes, passed)
			require.Empty(t, w.bind(p, w.nodes[1]))
		})
	}
}

// TestNodeThatAnotherExtenderRefuses: no bind is called.
func TestNodeThatAnotherExtenderRefuses(t *testing.T) {
	w := newWorld(t, 40, 1)
	w.used(w.nodes[5])
	p := w.pending("p")
	passed, _ := w.filter(p)
	require.Equal(t, w.nodes[5:6], passed)
	others := slices.Delete(slices.Clone(w.nodes), 5, 6)
	passed, _ = w.filter(p)
	require.Equal(t, others, passed)
	passed, _ = w.filter(p)
	require.Equal(t, others, passed)
	require.Empty(t, w.bind(p, w.nodes[30]))
	require.Len(t, w.audit(), 1)
}

// TestTriesAreForgotten: when the pod is bound or gone, if it never existed, and if the node was not at fault.
func TestTriesAreForgotten(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.filter(pod("unknown", 1000, 0))
	require.Empty(t, w.server.tries.pods)

	gone := w.pending("gone")
	w.filter(gone)
	require.Len(t, w.server.tries.pods, 1)
	w.cluster.remove(gone.Name)
	w.server.Sink().DeletePod(string(gone.UID))
	require.Empty(t, w.server.tries.pods)

	bound := w.pending("bound")
	w.filter(bound)
	bound = bound.DeepCopy()
	bound.Spec.NodeName = w.nodes[0]
	w.cluster.add(bound)
	w.server.Sink().SetPod(convert.Pod(bound))
	require.Empty(t, w.server.tries.pods)
	w.filter(bound)
	require.Empty(t, w.server.tries.pods, "a late call")

	member := w.pending("member", func(p *v1.Pod) {
		p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "g"}
		p.Annotations = map[string]string{"gpuslice.io/pod-group-min": "1"}
	})
	passed, _ := w.filter(member)
	w.cluster.add(pod("second", 1000, 0, func(p *v1.Pod) {
		p.Labels = member.Labels
		p.Annotations = map[string]string{"gpuslice.io/pod-group-min": "3"}
	}))
	require.Contains(t, w.bind(member, passed[0]), "group")
	require.Empty(t, w.server.tries.pods)
}
