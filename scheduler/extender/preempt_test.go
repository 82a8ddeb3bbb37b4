package extender

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func priority(n int32, more ...func(*v1.Pod)) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Priority = &n
		for _, f := range more {
			f(p)
		}
	}
}

func labelled(app string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Labels = map[string]string{"app": app} }
}

func budget(app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
}

func TestBudgetsSparePods(t *testing.T) {
	for _, tc := range []struct {
		name       string
		memory     int64
		budgets    []*policyv1.PodDisruptionBudget
		going      []string
		victims    []string
		violations int64
	}{
		{name: "no budget: the least important", memory: 20000, victims: []string{"uid-c"}},
		{name: "the least important is protected", memory: 20000, budgets: []*policyv1.PodDisruptionBudget{budget("c", 0)}, victims: []string{"uid-b"}},
		{name: "its budget allows one", memory: 20000, budgets: []*policyv1.PodDisruptionBudget{budget("c", 1)}, victims: []string{"uid-c"}},
		{name: "one that can't be spared is counted", memory: 70000, budgets: []*policyv1.PodDisruptionBudget{budget("c", 0)},
			victims: []string{"uid-c", "uid-a", "uid-b"}, violations: 1},
		{name: "a pod that is evicted anyway uses up the budget", memory: 45000, budgets: []*policyv1.PodDisruptionBudget{budget("b", 1), budget("c", 0)},
			going: []string{"uid-b"}, victims: []string{"uid-b", "uid-a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 1, 1)
			for i, name := range []string{"a", "b", "c"} {
				_, why := w.place(pod(name, 25000, 0, priority(int32(3-i), labelled(name))))
				require.Empty(t, why)
			}
			for _, b := range tc.budgets {
				require.NoError(t, w.cluster.factory.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(b))
			}
			going := &extenderv1.MetaVictims{}
			for _, uid := range tc.going {
				going.Pods = append(going.Pods, &extenderv1.MetaPod{UID: uid})
			}
			var result extenderv1.ExtenderPreemptionResult
			w.post("/preempt", extenderv1.ExtenderPreemptionArgs{Pod: pod("urgent", tc.memory, 0, priority(1000)),
				NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{w.nodes[0]: going}}, &result)
			all := result.NodeNameToMetaVictims[w.nodes[0]]
			require.NotNil(t, all)
			var uids []string
			for _, v := range all.Pods {
				uids = append(uids, v.UID)
			}
			require.Equal(t, tc.victims, uids)
			require.Equal(t, tc.violations, all.NumPDBViolations)
		})
	}
}

// GPUs of evicted pods are not assigned to another pod that comes at that moment, unless it is more
func TestNominatedPodKeepsItsGPUs(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.cluster.add(pod("nominated", 60000, 0, priority(10, func(p *v1.Pod) { p.Status.NominatedNodeName = w.nodes[0] })))
	for n, want := range map[int32][]string{5: {w.nodes[1]}, 10: {w.nodes[1]}, 11: w.nodes} {
		p := pod(fmt.Sprint("p", n), 40000, 0, priority(n, prefersZones)) // so that all nodes are returned
		passed, _ := w.filter(p)
		require.Equal(t, want, passed, "priority %d", n)
		w.engine.Unreserve(string(p.UID), owner(string(p.UID)))
	}
	own := w.cluster.named("nominated")
	passed, _ := w.filter(own)
	require.Equal(t, w.nodes[:1], passed, "it doesn't stand in its own way")
}

func TestClusterNominatedAndBudgets(t *testing.T) {
	waits := pod("waits", 1, 0, func(p *v1.Pod) { p.Status.NominatedNodeName = "n" })
	bound := pod("bound", 1, 0, func(p *v1.Pod) { p.Status.NominatedNodeName, p.Spec.NodeName = "n", "n" })
	client := fake.NewClientset(waits, bound, pod("plain", 1, 0), budget("a", 1))
	factory := kube.NewInformers(client)
	cluster, err := NewCluster(client, factory)
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	all := cluster.nominated()
	require.Len(t, all, 1)
	require.Len(t, all["n"], 1)
	require.Equal(t, "waits", all["n"][0].Name)
	require.Len(t, cluster.budgets(), 1)
}

// A pod that may be bound keeps its GPUs; one that is surely not doesn't.
func TestReservationAfterFailedBind(t *testing.T) {
	for _, tc := range []struct {
		look error
		kept bool
	}{{apierrors.NewForbidden(v1.Resource("pods"), "p", errors.New("no right to look")), true}, {nil, false}} {
		w := newWorld(t, 1, 1)
		w.cluster.bind, w.cluster.look = errors.New("the answer is lost"), tc.look
		_, why := w.place(pod("p", 1000, 0))
		require.Contains(t, why, "the answer is lost")
		require.Equal(t, tc.kept, w.engine.AllocatedNode("uid-p") != "")
	}
}

// TestConflictsAreLimited: a call that always comes too late is refused for now, and not kept for ever.
func TestConflictsAreLimited(t *testing.T) {
	w := newWorld(t, 2, 1)
	book, lost := w.server.reserve, 0
	w.server.reserve = func(*scheduler.Pod, *request.Request, string, string) (scheduler.Placement, error) {
		lost++
		return scheduler.Placement{}, &engine.NoFitError{}
	}
	passed, result := w.filter(pod("late", 1000, 0))
	require.Empty(t, passed)
	require.Empty(t, result.Error, "an error would be the extender's, and not that of the moment")
	require.Empty(t, result.FailedAndUnresolvableNodes)
	require.Equal(t, maxAttempts, lost)
	for _, node := range w.nodes {
		require.Contains(t, result.FailedNodes[node], "5 times in a row")
	}

	w.server.reserve = func(p *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
		if lost++; lost < 2*maxAttempts {
			return scheduler.Placement{}, &engine.NoFitError{}
		}
		return book(p, r, node, owner)
	}
	passed, _ = w.filter(pod("late", 1000, 0))
	require.NotEmpty(t, passed, "it gets its turn")
}

// kube-scheduler counts that it needs evictions for one pod of the group: that the others have no room it does not know.
func TestNoVictimsForOnePodOfAGroup(t *testing.T) {
	w := newWorld(t, 1, 1)
	low := pod("low", 60000, 0, priority(0))
	w.cluster.add(low)
	require.Empty(t, w.bind(low, w.nodes[0]))
	victims := func(p *v1.Pod) map[string]*extenderv1.MetaVictims {
		result, err := w.server.preempt(t.Context(), &extenderv1.ExtenderPreemptionArgs{Pod: p,
			NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{w.nodes[0]: {}}})
		require.NoError(t, err)
		return result.NodeNameToMetaVictims
	}
	members := []*v1.Pod{pod("g-0", 60000, 0, grouped("g", 2), priority(5)), pod("g-1", 60000, 0, grouped("g", 2), priority(5))}
	for _, p := range members {
		w.cluster.add(p)
	}
	require.Empty(t, victims(members[0]))
	single := pod("single", 60000, 0, priority(5))
	w.cluster.add(single)
	require.Len(t, victims(single)[w.nodes[0]].Pods, 1)
}
