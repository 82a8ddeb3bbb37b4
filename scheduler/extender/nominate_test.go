package extender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// large is a cluster of which kube-scheduler asks about a part, the first 100 nodes.
func large(t *testing.T) (w *world, asked, others []string) {
	w = newWorld(t, 130, 1)
	slices.Sort(w.nodes)
	return w, w.nodes[:leastNodes], w.nodes[leastNodes:]
}

// fill leaves too little memory for a pod of 50,000 MiB.
func (w *world) fill(nodes ...string) {
	for _, node := range nodes {
		p := pod("fills-"+node, 60000, 0)
		w.cluster.add(p)
		w.filterOf(p, []string{node})
		require.Empty(w.t, w.bind(p, node))
	}
}

// nominated are the nodes that wait for nomination.
func (w *world) nominated() (nodes []string) {
	for len(w.server.nominations) > 0 {
		nodes = append(nodes, (<-w.server.nominations).node)
	}
	return nodes
}

func (w *world) half(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := pod(name, 50000, 0, change...)
	w.cluster.add(p)
	return p
}

// TestNodeThatIsNotAskedAbout: the pod fits on another node than those of the call.
func TestNodeThatIsNotAskedAbout(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	w.used(others[7])
	p := w.half("p")
	passed, result := w.filterOf(p, asked)
	require.Empty(t, passed)
	require.Empty(t, result.FailedNodes, "no pods are evicted for it")
	require.Len(t, result.FailedAndUnresolvableNodes, len(asked))
	require.Contains(t, result.FailedAndUnresolvableNodes[asked[0]], others[7])
	require.Equal(t, others[7], w.engine.AllocatedNode(string(p.UID)), "no other pod gets it")

	w.cluster.failing = 2
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.server.Run(ctx)
	require.Eventually(t, func() bool {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return len(w.cluster.patches) == 1
	}, time.Minute, time.Millisecond)
	require.Contains(t, w.cluster.patches[0], fmt.Sprintf(`"status":{"nominatedNodeName":%q}`, others[7]))
	require.Contains(t, w.cluster.patches[0], "gpuslice.io/requeued")
	p = p.DeepCopy()
	p.Status.NominatedNodeName = others[7]
	passed, _ = w.filterOf(p, others[7:8])
	require.Equal(t, others[7:8], passed)
	require.Empty(t, w.bind(p, others[7]))
}

// TestNoPreemptionForANomination: kube-scheduler would evict pods where its own count refuses the pod.
func TestNoPreemptionForANomination(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	p := w.half("p", priority(10))
	node := asked[0]
	w.filterOf(p, asked)
	require.Equal(t, others[:1], w.nominated())
	require.Empty(t, w.preempted(p, node))
	w.filterOf(p, asked[1:]) // all nodes that there are
	require.Equal(t, []string{node}, w.preempted(p, node))
}

// preempted are the nodes on which kube-scheduler may evict pods.
func (w *world) preempted(p *v1.Pod, node string) []string {
	var result extenderv1.ExtenderPreemptionResult
	w.post("/preempt", extenderv1.ExtenderPreemptionArgs{Pod: p, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{node: {}}}, &result)
	return slices.Collect(maps.Keys(result.NodeNameToMetaVictims))
}

// nominate makes the nominations that wait.
func (w *world) nominate() {
	for len(w.server.nominations) > 0 {
		w.server.writeNomination(w.t.Context(), <-w.server.nominations)
	}
}

// nominatedFor is the pod after kube-scheduler's plugins have refused the nominated node.
func nominatedFor(p *v1.Pod, node string) *v1.Pod {
	p = p.DeepCopy()
	p.Status.NominatedNodeName = node
	return p
}

// TestPreemptionAfterANomination: in a later cycle kube-scheduler's plugins may refuse all nodes, so that it does not call
// filter before it looks for pods to evict.
func TestPreemptionAfterANomination(t *testing.T) {
	for name, test := range map[string]struct {
		failing int
		term    error
	}{"written": {}, "not written": {failing: 100}, "another leader": {term: errors.New("it leads no more")}} {
		t.Run(name, func(t *testing.T) {
			w, asked, _ := large(t)
			w.fill(asked...)
			p := w.half("p", priority(10))
			w.filterOf(p, asked)
			require.Empty(t, w.preempted(p, asked[0]))
			w.cluster.failing = test.failing
			w.server.Term = func(context.Context) (fence.Term, error) { return fence.Term{}, test.term }
			w.nominate()
			require.Equal(t, asked[:1], w.preempted(p, asked[0]))
		})
	}
}

// TestOutdatedNomination: kube-scheduler has tried the pod again before the nomination is written.
func TestOutdatedNomination(t *testing.T) {
	w, asked, _ := large(t)
	w.fill(asked...)
	p := w.half("p")
	w.filterOf(p, asked)
	passed, _ := w.filterOf(p, w.nodes[10:])
	require.NotEmpty(t, passed)
	w.nominate()
	require.Empty(t, w.cluster.patches)
}

// TestSlowNomination: others don't wait for it.
func TestSlowNomination(t *testing.T) {
	w, asked, _ := large(t)
	w.fill(asked...)
	w.filterOf(w.half("first"), asked)
	w.filterOf(w.half("second"), asked)
	first, goOn := make(chan struct{}, 1), make(chan struct{})
	first <- struct{}{}
	w.server.Term = func(context.Context) (fence.Term, error) {
		select {
		case <-first:
			<-goOn
		default:
		}
		return fence.Term{}, nil
	}
	written := func(n int) {
		require.Eventually(t, func() bool {
			w.cluster.mu.Lock()
			defer w.cluster.mu.Unlock()
			return len(w.cluster.patches) == n
		}, time.Minute, time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.server.Run(ctx)
	written(1)
	close(goOn)
	written(2)
}

// TestRefusedNomination: kube-scheduler's plugins refuse a nominated node. No pods are evicted before another one is tried.
func TestRefusedNomination(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	p := w.half("p")
	w.filterOf(p, asked)
	for i := range mostNominations - 1 {
		passed, result := w.filterOf(nominatedFor(p, others[i]), asked)
		require.Empty(t, passed)
		require.Empty(t, result.FailedNodes)
	}
	require.Equal(t, others[:mostNominations], w.nominated())
}

// TestReleasedAfterARefusal: a pod that is not placed holds no GPUs.
func TestReleasedAfterARefusal(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	w.fill(others[1:]...)
	p := w.half("p")
	w.filterOf(p, asked)
	require.Equal(t, others[:1], w.nominated())
	w.filterOf(nominatedFor(p, others[0]), asked)
	require.Empty(t, w.engine.AllocatedNode(string(p.UID)))
	passed, _ := w.filterOf(w.half("next"), others[:1])
	require.Equal(t, others[:1], passed)
}

// TestNominationsGoOn: each node is nominated at some time, and again if it failed for another reason. The nominations get
// rarer.
func TestNominationsGoOn(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	w.fill(others[5:]...)
	p := w.half("p")
	var all []string
	tries := 0
	for ; len(all) < 10 && tries < 200; tries++ {
		w.filterOf(p, asked)
		all = append(all, w.nominated()...)
	}
	require.Equal(t, slices.Concat(others[:5], others[:5]), all)
	require.Greater(t, tries, 10+mostNominations*(10-mostNominations))
	require.Less(t, tries, 10+10*(10-mostNominations))
}

// TestNominationsOfGroups: the group is not given up because kube-scheduler does not ask about the nodes with room. It is not
// delayed for better nodes.
func TestNominationsOfGroups(t *testing.T) {
	w, asked, others := large(t)
	w.used(others...)
	first, second := w.half("first", grouped("g", 2)), w.half("second", grouped("g", 2))
	passed, _ := w.filterOf(first, asked)
	require.Equal(t, asked[:1], passed)
	bound := make(chan string, 1)
	go func() { bound <- w.bind(first, asked[0]) }()
	require.Eventually(t, func() bool { return len(w.server.groups.waiting()) == 1 }, time.Minute, time.Millisecond)
	w.fill(asked[1:]...)
	passed, _ = w.filterOf(second, asked)
	require.Empty(t, passed)
	require.Equal(t, others[:1], w.nominated())
	passed, _ = w.filterOf(nominatedFor(second, others[0]), others[:1])
	require.Equal(t, others[:1], passed)
	require.Empty(t, w.bind(second, others[0]))
	require.Empty(t, <-bound)
}

// TestNodesThatKubeSchedulerRefuses: binpack likes full nodes. If they have no CPU left, not each pod is tried there.
func TestNodesThatKubeSchedulerRefuses(t *testing.T) {
	w, asked, others := large(t)
	w.used(others[:betterNodes]...)
	p := w.half("p")
	w.filterOf(p, asked)
	require.Equal(t, others[:1], w.nominated())
	passed, _ := w.filterOf(nominatedFor(p, others[0]), asked)
	require.Equal(t, asked, passed)
	passed, _ = w.filterOf(w.half("second"), asked)
	require.Equal(t, asked[1:2], passed, "asked[0] has p")
	require.Empty(t, w.nominated())

	w.fill(asked[2:]...)
	w.fill(others[1:]...)
	w.filterOf(w.half("third"), asked)
	require.Equal(t, others[:1], w.nominated(), "nothing else fits")
}

func TestRefusalsAreForgotten(t *testing.T) {
	w, asked, others := large(t)
	w.server.Clock = func() time.Time { return w.now() }
	w.used(others[:betterNodes]...)
	p := w.half("p")
	w.filterOf(p, asked)
	w.filterOf(nominatedFor(p, others[0]), asked)
	require.Equal(t, others[:1], w.nominated())
	now := w.now().Add(refusedTime)
	w.now = func() time.Time { return now }
	w.filterOf(w.half("second"), asked)
	require.Equal(t, others[:1], w.nominated())
}

// TestNominationsEnd: kube-scheduler's plugins may refuse each node, of which the extender does not know.
func TestNominationsEnd(t *testing.T) {
	w, asked, others := large(t)
	w.fill(asked...)
	p := w.half("p")
	for range mostNominations {
		passed, result := w.filterOf(p, asked)
		require.Empty(t, passed)
		require.Empty(t, result.FailedNodes)
	}
	require.Equal(t, others[:mostNominations], w.nominated())
	_, result := w.filterOf(p, asked)
	require.Len(t, result.FailedNodes, len(asked), "pods can be evicted for it")
	require.Empty(t, w.nominated())
	passed, _ := w.filterOf(p, w.nodes[10:])
	require.Len(t, passed, len(others)-mostNominations, "it still gets what kube-scheduler asks about")
}

// TestManyBetterNodes: binpack keeps few nodes in use, with few nominations.
func TestManyBetterNodes(t *testing.T) {
	w, asked, others := large(t)
	w.used(others[1:betterNodes]...)
	passed, _ := w.filterOf(w.half("p"), asked)
	require.Equal(t, asked[:1], passed)
	require.Empty(t, w.nominated())

	w, asked, others = large(t)
	w.used(others[1 : betterNodes+1]...)
	p := w.half("p")
	passed, _ = w.filterOf(p, asked)
	require.Empty(t, passed)
	require.Equal(t, others[1:2], w.nominated())
	passed, _ = w.filterOf(p, asked)
	require.Equal(t, asked, passed, "once only: the pod fits here too")
	require.Empty(t, w.nominated())
}

// TestNoNomination: nodes that kube-scheduler has refused, or will refuse, are not nominated.
func TestNoNomination(t *testing.T) {
	pool := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} }
	racks := func(p *v1.Pod) {
		grouped("g", 1)(p)
		p.Annotations[api.AnnotationGroupTopology] = "rack"
	}
	for name, test := range map[string]struct {
		pod  func(*v1.Pod)
		node func(*v1.Node)
	}{
		"cordoned":     {func(*v1.Pod) {}, func(n *v1.Node) { n.Spec.Unschedulable = true }},
		"tainted":      {func(*v1.Pod) {}, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} }},
		"avoided":      {func(*v1.Pod) {}, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectPreferNoSchedule}} }},
		"another pool": {pool, func(n *v1.Node) { n.Labels = map[string]string{"pool": "b"} }},
		"a topology":   {racks, func(*v1.Node) {}},
		"nominated":    {func(p *v1.Pod) { p.Status.NominatedNodeName = "node-00" }, func(*v1.Node) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w, asked, others := large(t)
			w.fill(asked...)
			for _, name := range others {
				n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
				test.node(n)
				require.NoError(t, w.cluster.nodes.Update(n))
			}
			_, result := w.filterOf(w.half("p", test.pod), asked)
			require.Len(t, result.FailedNodes, len(asked))
			require.Empty(t, w.nominated())
		})
	}
	t.Run("a group that kube-scheduler tries as a whole", func(t *testing.T) {
		w, group := newWorld(t, 1, 1), "g"
		require.False(t, w.server.mayLeave(w.half("p", func(p *v1.Pod) {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		}), false))
	})
	t.Run("few nodes", func(t *testing.T) { // kube-scheduler has tried all of them
		w, asked, _ := large(t)
		w.fill(asked...)
		_, result := w.filterOf(w.half("p"), asked[1:])
		require.Len(t, result.FailedNodes, len(asked)-1)
		require.Empty(t, w.nominated())
	})
	t.Run("preferences", func(t *testing.T) {
		w, asked, others := large(t)
		w.used(others...)
		passed, _ := w.filterOf(w.half("p", prefersZones), asked)
		require.Equal(t, asked, passed)
		require.Empty(t, w.nominated())
	})
	t.Run("volumes", func(t *testing.T) { // it can't be foreseen where they can be
		w, asked, others := large(t)
		w.used(others...)
		passed, _ := w.filterOf(w.half("p", func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
		}), asked)
		require.Equal(t, asked[:1], passed)
		require.Empty(t, w.nominated())
	})
	t.Run("dry run", func(t *testing.T) {
		w, asked, _ := large(t)
		w.fill(asked...)
		p := w.half("p")
		var result extenderv1.ExtenderFilterResult
		w.post("/filter-dryrun", extenderv1.ExtenderArgs{Pod: p, NodeNames: &asked}, &result)
		require.Len(t, result.FailedNodes, len(asked))
		require.Empty(t, w.nominated())
		require.Empty(t, w.engine.AllocatedNode(string(p.UID)))
	})
	t.Run("kept for a nominated pod", func(t *testing.T) {
		w, asked, others := large(t)
		w.fill(asked...)
		w.fill(others[1:]...)
		w.half("first", priority(10, func(p *v1.Pod) { p.Status.NominatedNodeName = others[0] }))
		_, result := w.filterOf(w.half("p"), asked)
		require.Len(t, result.FailedNodes, len(asked))
		require.Empty(t, w.nominated())
	})
}

// TestQueueOfNominationsIsFull: the pod gets what the call has.
func TestQueueOfNominationsIsFull(t *testing.T) {
	w, asked, others := large(t)
	w.used(others...)
	w.server.nominations = make(chan nomination)
	p := w.half("p")
	passed, _ := w.filterOf(p, asked)
	require.Equal(t, asked, passed)
	require.Equal(t, asked[0], w.engine.AllocatedNode(string(p.UID)))
	require.False(t, w.server.tries.nominated(string(p.UID), ""))
}
