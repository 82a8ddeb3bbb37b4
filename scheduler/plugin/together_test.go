package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
)

// evictions are a world in which each node's only GPU is taken by a pod of low priority.
type evictions struct {
	*world
	t       *testing.T
	infos   []fwk.NodeInfo
	evicted []string
	asked   []string
	// budget refuses the eviction of a pod with that name.
	budget string
}

func newEvictions(t *testing.T, nodes int, more ...runtime.Object) *evictions {
	for i := range nodes {
		more = append(more, gpuNode(fmt.Sprint("n", i), 1, i+1))
	}
	e := &evictions{world: newWorld(t, "", more...), t: t}
	for i := range nodes {
		low := gpuPod(fmt.Sprint("low-", i), 60000, 0)
		low.Spec.Priority = new(int32(i))
		low.Labels = map[string]string{"app": low.Name}
		low = e.placed(t, low, fmt.Sprint("n", i))
		e.create(low)
		e.infos = append(e.infos, &nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}, pods: []*v1.Pod{low}})
	}
	e.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		eviction, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		switch {
		case !ok:
			return false, nil, nil
		case eviction.Name == e.budget:
			return true, nil, apierrors.NewTooManyRequests("a budget", 1)
		case len(eviction.DeleteOptions.DryRun) > 0:
			e.asked = append(e.asked, eviction.Name)
		default:
			e.evicted = append(e.evicted, eviction.Name)
		}
		return true, eviction, nil
	})
	return e
}

func (e *evictions) create(pod *v1.Pod) {
	_, err := e.client.CoreV1().Pods(pod.Namespace).Create(e.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(e.t, err)
	require.Eventually(e.t, func() bool { return e.groups.exists(pod) }, 10*time.Second, time.Millisecond)
}

// group makes pods that are placed together.
func (e *evictions) group(name string, n int, priority int32) (pods []*v1.Pod) {
	pods = gangOf(name, n)
	for _, pod := range pods {
		pod.Spec.Priority = new(priority)
		e.create(pod)
	}
	return pods
}

// try takes a pod through a cycle in which no node fits, and returns the node that it is nominated for.
func (e *evictions) try(pod *v1.Pod) string {
	e.t.Helper()
	e.state = newState()
	_, status := e.PreFilter(e.t.Context(), e.state, pod, e.infos)
	require.True(e.t, status.IsSuccess(), status.Message())
	for _, info := range e.infos {
		require.Equal(e.t, fwk.Unschedulable, e.filter(e.t, e.state, pod, info.Node().Name))
	}
	result, status := e.PostFilter(e.t.Context(), e.state, pod, nil)
	if !status.IsSuccess() {
		return ""
	}
	return result.NominatedNodeName
}

func (e *evictions) nominatedNode(pod *v1.Pod) string {
	now, err := e.client.CoreV1().Pods(pod.Namespace).Get(e.t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(e.t, err)
	return now.Status.NominatedNodeName
}

// A group of higher priority preempts as a whole, once.
func TestGroupPreempts(t *testing.T) {
	e := newEvictions(t, 3)
	pods := e.group("g", 2, 5)
	require.Equal(t, "n0", e.try(pods[0]))
	require.Equal(t, []string{"low-0", "low-1"}, e.evicted)
	require.Equal(t, "n1", e.nominatedNode(pods[1]), "what becomes free is kept for it")
	require.Equal(t, "n1", e.try(pods[1]), "its victim is about to end")
	require.Equal(t, "n0", e.try(pods[0]))
	require.Len(t, e.evicted, 2)
}

// There is no room for all of the group: kube-scheduler would evict for the first pods.
func TestGroupPreemptsNeverPartly(t *testing.T) {
	e := newEvictions(t, 3)
	for name, pods := range map[string][]*v1.Pod{
		"too many":               e.group("many", 4, 5),
		"not all less important": e.group("equal", 2, 1),
	} {
		for _, pod := range pods {
			require.Empty(t, e.try(pod), name)
		}
	}
	require.Empty(t, e.evicted)
	// As DefaultPreemption does it.
	pods := e.group("g", 4, 5)
	_, status := e.PreFilter(t.Context(), e.state, pods[0], e.infos)
	require.True(t, status.IsSuccess())
	low := e.infos[0].GetPods()[0]
	require.True(t, e.RemovePod(t.Context(), e.state, pods[0], low, e.infos[0]).IsSuccess())
	require.Equal(t, fwk.Unschedulable, e.filter(t, e.state, pods[0], "n0"))
}

// The budget of one victim protects all of them, also one that this process does not know of yet.
func TestGroupPreemptsWithinBudgets(t *testing.T) {
	protected := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "low-0"}}
	protected.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "low-0"}}
	e := newEvictions(t, 3, protected)
	require.Empty(t, e.try(e.group("all", 3, 5)[0]))
	e.budget = "low-2"
	pods := e.group("g", 2, 5)
	require.Empty(t, e.try(pods[0]))
	require.Equal(t, []string{"low-1"}, e.asked)
	require.Empty(t, e.evicted)
	e.budget = ""
	require.Equal(t, "n1", e.try(pods[0]))
	require.Equal(t, []string{"low-1", "low-2"}, e.evicted)
}

// Nothing is evicted where other plugins would refuse the pods, or for pods that must not preempt.
func TestGroupPreemptsOnlyWhereItFits(t *testing.T) {
	e := newEvictions(t, 3)
	e.infos[0].Node().Spec.Unschedulable = true
	// A node has 8 CPUs.
	e.infos[1].(*nodeInfo).requested.cpu = 7000
	pods := gangOf("g", 2)
	for _, pod := range pods {
		pod.Spec.Priority = new(int32(5))
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{"cpu": resource.MustParse("2")}
		for name, amount := range pod.Spec.Containers[0].Resources.Limits {
			pod.Spec.Containers[0].Resources.Requests[name] = amount
		}
		e.create(pod)
	}
	require.Empty(t, e.try(pods[0]))
	require.Empty(t, e.evicted)
	e.infos[1].(*nodeInfo).requested.cpu = 6000
	never := e.group("never", 2, 5)
	changed := never[1].DeepCopy()
	changed.Spec.PreemptionPolicy = new(v1.PreemptNever)
	_, err := e.client.CoreV1().Pods("ns").Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return e.groups.of(never[0]).Needed()[1].Spec.PreemptionPolicy != nil
	}, 10*time.Second, time.Millisecond)
	require.Empty(t, e.try(never[0]))
	require.Empty(t, e.evicted)
	require.Equal(t, "n1", e.try(pods[0]))
	require.Equal(t, []string{"low-1", "low-2"}, e.evicted)
}
