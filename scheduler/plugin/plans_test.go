package plugin

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

const preempts = `{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupPreemption":true}`

func prioritized(pod *v1.Pod, priority int32) *v1.Pod {
	pod.Spec.Priority = &priority
	return pod
}

// preempting is a group of that priority.
func preempting(group string, n int, priority int32) []*v1.Pod {
	pods := gangOf(group, n)
	for _, pod := range pods {
		prioritized(pod, priority)
	}
	return pods
}

// deletions has an API server on which deleted pods stay, terminating, until end is called.
type deletions struct {
	w *world

	mu     sync.Mutex
	names  []string
	refuse map[string]error
}

func (w *world) deletions() *deletions {
	d := &deletions{w: w, refuse: map[string]error{}}
	w.client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		name := a.(clienttesting.DeleteAction).GetName()
		if err := d.refuse[name]; err != nil {
			return true, nil, err
		}
		d.names = append(d.names, name)
		return true, nil, nil
	})
	return d
}

func (d *deletions) fail(name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse[name] = err
}

func (d *deletions) sorted() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(slices.Values(d.names))
}

func (d *deletions) are(t *testing.T, names ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Equal(names, d.sorted()) }, time.Minute, time.Millisecond, "%v", names)
}

// ended takes a pod out of the informers and the engine.
func (w *world) ended(t *testing.T, pod *v1.Pod) {
	t.Helper()
	require.NoError(t, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name))
	require.Eventually(t, func() bool { return w.gone(victimOf(pod, pod.Spec.NodeName).Victim) }, time.Minute, time.Millisecond)
}

// runs binds the pod, and waits until the informers have it.
func (w *world) bind(t *testing.T, pod *v1.Pod, node string) *v1.Pod {
	t.Helper()
	labels, annotations := pod.Labels, pod.Annotations
	pod = w.placed(t, pod, node)
	pod.Labels = labels
	for key, value := range annotations {
		pod.Annotations[key] = value
	}
	_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	w.known(t, pod)
	return pod
}

func (w *world) known(t *testing.T, pod *v1.Pod) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := w.pods.Pods(pod.Namespace).Get(pod.Name)
		return err == nil && (found.DeletionTimestamp != nil) == (pod.DeletionTimestamp != nil)
	}, time.Minute, time.Millisecond)
}

// try is a cycle of a pod: the node on which it fits, or the one that is nominated.
func (w *world) try(t *testing.T, pod *v1.Pod, nodes ...*v1.Node) (fits, nominated string) {
	t.Helper()
	w.state = newState()
	var infos []fwk.NodeInfo
	for i, node := range nodes {
		infos = append(infos, &nodeInfo{node: node, generation: int64(i + 1)})
	}
	_, status := w.PreFilter(t.Context(), w.state, pod, infos)
	all := statuses{}
	for _, node := range nodes {
		all[node.Name] = status
		if status.IsSuccess() {
			if all[node.Name] = w.Filter(t.Context(), w.state, pod, on(node.Name)); all[node.Name].IsSuccess() {
				return node.Name, ""
			}
		}
		all[node.Name] = all[node.Name].WithPlugin(Name)
	}
	result, status := w.PostFilter(t.Context(), w.state, pod, all)
	if status.IsSuccess() {
		nominated = result.NominatedNodeName
	}
	return "", nominated
}

// keeps reports whether the group has a plan.
func (w *world) keeps(group string) bool {
	w.plans.mu.Lock()
	defer w.plans.mu.Unlock()
	return w.plans.of(gang.Name{Namespace: "ns", Name: group}) != nil
}

func TestGroupWaitsForVictims(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 1, 1), gpuNode("n2", 1, 2)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	low := []*v1.Pod{w.bind(t, gpuPod("low-0", 60000, 0), "n1"), w.bind(t, gpuPod("low-1", 60000, 0), "n2")}
	_, first := w.try(t, pods[0], n1, n2)
	_, second := w.try(t, pods[1], n1, n2)
	require.ElementsMatch(t, []string{"n1", "n2"}, []string{first, second})
	deleted.are(t, "low-0", "low-1")
	status := w.preFilter(t, pods[0])
	require.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
	require.Contains(t, status.Message(), "group ns/g: 2 pods end to make room for it")
	w.took()
	for _, pod := range low {
		w.ended(t, pod)
	}
	require.Eventually(t, func() bool { return len(w.took()) > 0 }, time.Minute, time.Millisecond, "they are tried again")
	fits, _ := w.try(t, pods[0], n1, n2)
	require.Equal(t, first, fits, "each has its node")
	fits, _ = w.try(t, gpuPod("other", 60000, 0), n1, n2)
	require.Empty(t, fits)
	fits, _ = w.try(t, prioritized(gpuPod("higher", 60000, 0), 6), n1, n2)
	require.NotEmpty(t, fits, "the room is kept from pods of the same and of lower priority")
}

// A group has more pods than have room: its minimum is placed, and the others do not take its room.
func TestRoomForTheMinimum(t *testing.T) {
	pods, n1 := preempting("g", 3, 5), gpuNode("n1", 2, 1)
	for _, pod := range pods {
		pod.Annotations[api.AnnotationGroupMin] = "2"
	}
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	deleted := w.deletions()
	low := []*v1.Pod{w.bind(t, gpuPod("low-0", 60000, 0), "n1"), w.bind(t, gpuPod("low-1", 60000, 0), "n1")}
	_, nominated := w.try(t, pods[2], n1)
	require.Empty(t, nominated)
	require.True(t, w.keeps("g"))
	deleted.are(t, "low-0", "low-1")
	for _, pod := range low {
		w.ended(t, pod)
	}
	status := w.preFilter(t, pods[2])
	require.Contains(t, status.Message(), "group ns/g: 2 other pods are placed first")
	_, nominated = w.try(t, pods[2], n1)
	require.Empty(t, nominated)
	waits, _ := w.place(t, pods[0], "n1")
	last, _ := w.place(t, pods[1], "n1")
	require.Nil(t, last)
	_, done := waits.is()
	require.True(t, done)
}

// NodeResourcesFit knows later that the victims have ended.
func TestPlanSurvivesAnotherPlugin(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	deleted := w.deletions()
	low := []*v1.Pod{w.bind(t, gpuPod("low-0", 60000, 0), "n1"), w.bind(t, gpuPod("low-1", 60000, 0), "n1")}
	w.try(t, pods[0], n1)
	deleted.are(t, "low-0", "low-1")
	for _, pod := range low {
		w.ended(t, pod)
	}
	rejected := func(code fwk.Code) {
		require.True(t, w.preFilter(t, pods[0]).IsSuccess())
		w.PostFilter(t.Context(), w.state, pods[0], statuses{"n1": fwk.NewStatus(code).WithPlugin("NodeResourcesFit")})
	}
	for range maxRejected - 1 {
		rejected(fwk.Unschedulable)
		require.True(t, w.keeps("g"))
	}
	rejected(fwk.Unschedulable)
	require.False(t, w.keeps("g"), "not for ever")
	require.True(t, w.plans.waits(gang.Name{Namespace: "ns", Name: "g"}))
}

// A pod that waited for its group has its GPUs until kube-scheduler has ended its cycle: the plan has the pod elsewhere, and
// ended at once.
func TestPlanBesideWaitingPod(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 1, 1), gpuNode("n2", 1, 2)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	low := w.bind(t, gpuPod("low", 60000, 0), "n2")
	waits, state := w.place(t, pods[1], "n1")
	_, nominated := w.try(t, pods[0], n1, n2)
	require.Equal(t, "n1", nominated)
	_, done := waits.is()
	require.True(t, done)
	w.confirm()
	require.True(t, w.keeps("g"))
	deleted.are(t, "low")
	w.Unreserve(t.Context(), state, pods[1], "n1")
	w.confirm()
	require.True(t, w.keeps("g"))
	w.ended(t, low)
	fits, _ := w.try(t, pods[1], n1, n2)
	require.Equal(t, "n2", fits)
}

func TestGroupPreemptionIsOff(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	w := newWorld(t, "", append(objects(pods...), n1)...)
	require.Nil(t, w.plans)
	w.bind(t, gpuPod("low-0", 60000, 0), "n1")
	w.bind(t, gpuPod("low-1", 60000, 0), "n1")
	_, nominated := w.try(t, pods[0], n1)
	require.Empty(t, nominated)
	require.True(t, w.preFilter(t, pods[0]).IsSuccess())
	info := podInfo{pod: gpuPod("low-0", 60000, 0)}
	require.True(t, w.RemovePod(t.Context(), w.state, pods[0], info, on("n1")).IsSuccess())
	require.Equal(t, fwk.Success, w.filter(t, w.state, pods[0], "n1"), "kube-scheduler preempts for one pod")
	w.forget(pods[0])
}

func TestPreemptionPolicyOfGroup(t *testing.T) {
	pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
	never := v1.PreemptNever
	pods[1].Spec.PreemptionPolicy = &never
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	w.bind(t, gpuPod("low", 60000, 0), "n1")
	w.bind(t, gpuPod("low-too", 60000, 0), "n1")
	_, nominated := w.try(t, pods[0], n1)
	require.Empty(t, nominated)
	require.False(t, w.keeps("g"))
}

// Pods that end already are not evicted again, and no others for their room.
func TestRoomOfTerminatingPods(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 2, 1), gpuNode("n2", 2, 3)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	for i, node := range []string{"n1", "n1", "n2", "n2"} {
		pod := gpuPod(fmt.Sprint("low-", i), 60000, 0)
		if i < 2 {
			now := metav1.Now()
			pod.DeletionTimestamp, pod.Finalizers = &now, []string{"example.com/wait"}
		}
		w.bind(t, pod, node)
	}
	_, nominated := w.try(t, pods[0], n1, n2)
	require.Equal(t, "n1", nominated)
	require.True(t, w.keeps("g"))
	w.confirm()
	w.evictAll(t.Context())
	require.Empty(t, deleted.sorted())
	require.True(t, w.keeps("g"))
}

// Two groups planned with the same victims.
func TestTwoGroupsHaveTheirOwnVictims(t *testing.T) {
	a, b, n1 := preempting("a", 2, 5), preempting("b", 2, 5), gpuNode("n1", 4, 1)
	w := newWorld(t, preempts, append(objects(append(a, b...)...), n1)...)
	deleted := w.deletions()
	for i := range 4 {
		w.bind(t, gpuPod(fmt.Sprint("low-", i), 60000, 0), "n1")
	}
	_, nominated := w.try(t, a[0], n1)
	require.Equal(t, "n1", nominated)
	_, nominated = w.try(t, b[0], n1)
	require.Equal(t, "n1", nominated)
	deleted.are(t, "low-0", "low-1", "low-2", "low-3")
	c := preempting("c", 2, 5)
	for _, pod := range c {
		_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		w.known(t, pod)
	}
	_, nominated = w.try(t, c[0], n1)
	require.Empty(t, nominated, "nothing is left for a third one")
	d := preempting("d", 4, 6)
	for _, pod := range d {
		_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		w.known(t, pod)
	}
	_, nominated = w.try(t, d[0], n1)
	require.Equal(t, "n1", nominated, "a more important one takes the room")
	require.Eventually(t, func() bool { return !w.keeps("a") && !w.keeps("b") }, time.Minute, time.Millisecond)
	require.True(t, w.keeps("d"))
	require.Len(t, deleted.sorted(), 4)
}

// A pod may use the node of a plan if the GPU that it gets is not needed.
func TestPodLeavesRoomOnTheNode(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 2, 1), gpuNode("n2", 1, 3)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	w.deletions()
	w.bind(t, prioritized(with(gpuPod("used", 40000, 0), func(p *v1.Pod) {
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu(1)}
	}), 9), "n1")
	low, too := w.bind(t, gpuPod("low", 60000, 0), "n1"), w.bind(t, gpuPod("low-too", 60000, 0), "n2")
	_, nominated := w.try(t, pods[0], n1, n2)
	require.NotEmpty(t, nominated)
	w.ended(t, low)
	w.ended(t, too)
	for policy, want := range map[string]string{"spread": "", "binpack": "n1"} {
		other := with(gpuPod("other", 30000, 0), func(p *v1.Pod) {
			p.Annotations = map[string]string{"hami.io/gpu-scheduler-policy": policy}
		})
		fits, _ := w.try(t, other, n1, n2)
		require.Equal(t, want, fits, policy)
	}
}

// The search takes time: one for each round of retries is enough.
func TestFruitlessSearches(t *testing.T) {
	pods, n1 := preempting("g", 3, 5), gpuNode("n1", 2, 1)
	w := newWorld(t, preempts, append(objects(pods...), n1)...)
	for i := range 2 {
		w.bind(t, prioritized(gpuPod(fmt.Sprint("high-", i), 60000, 0), 9), "n1")
	}
	reason := func(pod *v1.Pod) string {
		require.True(t, w.preFilter(t, pod).IsSuccess())
		_, status := w.PostFilter(t.Context(), w.state, pod, nil)
		return status.Message()
	}
	for range 2 {
		for _, pod := range pods {
			require.Contains(t, reason(pod), "group ns/g: no evictions of pods with a lower priority make room for all of its pods")
		}
	}
	g := gang.Name{Namespace: "ns", Name: "g"}
	for i, search := range []bool{true, false, false, true, false, true} {
		_, is := w.plans.searches(g, pods[[]int{0, 1, 2, 1, 0, 1}[i]].UID)
		require.Equal(t, search, is, i)
	}
}

func TestDelayOfTheNextPlan(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := newPlans()
	p.clock = func() time.Time { return now }
	g := gang.Name{Namespace: "ns", Name: "g"}
	one := func(begun bool) *plan { return &plan{group: g, evict: []*eviction{{begun: begun}}} }
	p.fail(one(false), false)
	require.False(t, p.waits(g), "no pod was evicted")
	p.fail(one(false), true)
	require.True(t, p.waits(g))
	p.forget(g)
	for _, want := range []time.Duration{firstDelay, 2 * firstDelay, 4 * firstDelay, 8 * firstDelay, 16 * firstDelay, lastDelay, lastDelay} {
		p.fail(one(true), false)
		now = now.Add(want - time.Second)
		require.True(t, p.waits(g), want)
		now = now.Add(time.Second)
		require.False(t, p.waits(g), want)
	}
	p.forget(g)
	p.fail(one(true), false)
	now = now.Add(firstDelay)
	require.False(t, p.waits(g))
}

// Pods were evicted for a group that kube-scheduler can't place.
func TestGroupWithoutEnoughPods(t *testing.T) {
	for name, change := range map[string]func(p *v1.Pod){
		"gate":              func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/wait"}} },
		"another scheduler": func(p *v1.Pod) { p.Spec.SchedulerName = "default-scheduler" },
	} {
		t.Run(name, func(t *testing.T) {
			pods, n1 := preempting("g", 2, 5), gpuNode("n1", 2, 1)
			change(pods[1])
			w := newWorld(t, preempts, append(objects(pods...), n1)...)
			deleted := w.deletions()
			w.bind(t, gpuPod("low-0", 60000, 0), "n1")
			w.bind(t, gpuPod("low-1", 60000, 0), "n1")
			_, nominated := w.try(t, pods[0], n1)
			require.Empty(t, nominated)
			require.False(t, w.keeps("g"))
			require.Empty(t, deleted.sorted())
		})
	}
}

// Each pod of the group has its volume on another node.
func TestVolumesOfGroup(t *testing.T) {
	pods, n1, n2 := preempting("g", 2, 5), gpuNode("n1", 1, 1), gpuNode("n2", 1, 2)
	w := newWorld(t, preempts, append(objects(pods...), n1, n2)...)
	deleted := w.deletions()
	w.bind(t, gpuPod("low-0", 60000, 0), "n1")
	w.bind(t, gpuPod("low-1", 60000, 0), "n2")
	fail := func(pod *v1.Pod, full, refused string) (nominated string) {
		require.True(t, w.preFilter(t, pod).IsSuccess())
		result, _ := w.PostFilter(t.Context(), w.state, pod, statuses{full: fwk.NewStatus(fwk.Unschedulable).WithPlugin(Name),
			refused: fwk.NewStatus(fwk.UnschedulableAndUnresolvable).WithPlugin("VolumeBinding")})
		require.NotNil(t, result)
		return result.NominatedNodeName
	}
	require.Equal(t, "n1", fail(pods[0], "n1", "n2"))
	deleted.are(t, "low-0", "low-1")
	_, nominated := w.try(t, pods[1], n1, n2)
	require.Equal(t, "n2", nominated)
}

// Both groups took what the budget allows.
func TestGroupsShareABudget(t *testing.T) {
	a, b, n1 := preempting("a", 2, 5), preempting("b", 2, 5), gpuNode("n1", 6, 1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "low"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "low"}}
	budget.Status.DisruptionsAllowed = 2
	w := newWorld(t, preempts, append(objects(append(a, b...)...), n1, budget)...)
	deleted := w.deletions()
	for i := range 6 {
		pod := gpuPod(fmt.Sprint("low-", i), 60000, 0)
		if i < 4 {
			pod.Labels = map[string]string{"app": "low"}
		}
		w.bind(t, pod, "n1")
	}
	for _, pod := range []*v1.Pod{a[0], b[0]} {
		_, nominated := w.try(t, pod, n1)
		require.Equal(t, "n1", nominated)
	}
	deleted.are(t, "low-0", "low-1", "low-4", "low-5")
}
