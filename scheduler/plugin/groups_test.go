package plugin

import (
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// gangOf are so many pods of a group that needs them all, each with most of a GPU.
func gangOf(group string, n int) (pods []*v1.Pod) {
	for i := range n {
		pods = append(pods, member(gpuPod(fmt.Sprintf("%s-%d", group, i), 60000, 0), group, n))
	}
	return pods
}

// forms are the groups that are forming, and their ends.
func (w *world) forms() map[gang.Name]*time.Timer {
	w.groups.mu.Lock()
	defer w.groups.mu.Unlock()
	return maps.Clone(w.groups.timers)
}

// A label of coscheduling without a minimum placed a part of the group.
func TestGroupWithoutMinimumReservesNothing(t *testing.T) {
	for name, in := range map[string]func(*v1.Pod){
		"coscheduling": func(p *v1.Pod) { p.Labels = map[string]string{api.LabelGroup: "g"} },
		"Volcano":      func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationVolcanoGroup: "g"} },
		"Kubernetes": func(p *v1.Pod) {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := with(gpuPod("g-0", 60000, 0), in)
			w := newWorld(t, "", pod, gpuNode("n1", 3, 1))
			status := w.preFilter(t, pod)
			require.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
			require.Contains(t, status.Message(), "it is not known how many pods must be scheduled together")
			require.Contains(t, status.Message(), "set the annotation gpuslice.io/pod-group-min of the pods")
			status, _ = w.Permit(t.Context(), w.state, pod, "n1")
			require.True(t, status.IsRejected(), "nor in Permit, if PreFilter did not know of the group")
		})
	}
}

// found is a PodGroup of each name.
type found struct{ atomic.Pointer[gang.Spec] }

func (f *found) Find(gang.Name) (gang.Spec, error) { return *f.Load(), nil }

func TestPodGroup(t *testing.T) {
	pods := []*v1.Pod{gpuPod("g-0", 60000, 0), gpuPod("g-1", 60000, 0)}
	for _, pod := range pods {
		pod.Annotations = map[string]string{api.AnnotationVolcanoGroup: "g"}
	}
	group := &found{}
	group.Store(&gang.Spec{Minimum: 3, Timeout: time.Hour})
	w := newWorldWith(t, "", func(p *Plugin) { p.groups.minimums = group }, append(objects(pods...), gpuNode("n1", 3, 1))...)
	require.Contains(t, w.preFilter(t, pods[0]).Message(), "group ns/g (scheduling.volcano.sh) has 2 of the 3 pods")
	w.took()
	group.Store(&gang.Spec{Minimum: 2, Timeout: time.Hour})
	w.groups.podGroupChanged(gang.Name{API: gang.Volcano, Namespace: "ns", Name: "g"})
	require.Equal(t, []string{"g-0", "g-1"}, w.took())
	require.True(t, w.preFilter(t, pods[0]).IsSuccess())
	require.True(t, w.Reserve(t.Context(), w.state, pods[0], "n1").IsSuccess())
	status, timeout := w.Permit(t.Context(), w.state, pods[0], "n1")
	require.True(t, status.IsWait())
	require.Equal(t, maxGroupTimeout+time.Minute, timeout, "the PodGroup's own, limited")
	first := w.wait(pods[0])
	last, _ := w.place(t, pods[1], "n1")
	require.Nil(t, last)
	_, done := first.is()
	require.True(t, done)
}

// Where kube-scheduler schedules these groups, each of its cycles would wait for the plugin's Permit, and the plugin for
// the cycles of the others.
func TestNativeGroup(t *testing.T) {
	pod := with(gpuPod("g-0", 60000, 0), func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")} })
	w := newWorldWith(t, "", func(p *Plugin) { p.groups.native = true }, pod, gpuNode("n1", 1, 1))
	last, _ := w.place(t, pod, "n1")
	require.Nil(t, last)
}

func objects(pods ...*v1.Pod) (all []runtime.Object) {
	for _, pod := range pods {
		all = append(all, pod)
	}
	return all
}

// place takes the pod through a cycle up to Permit, and has it wait if it has to.
func (w *world) place(t *testing.T, pod *v1.Pod, node string) (*waiting, *cycleState) {
	t.Helper()
	require.True(t, w.preFilter(t, pod).IsSuccess())
	state := w.state
	require.True(t, w.Reserve(t.Context(), state, pod, node).IsSuccess())
	status, timeout := w.Permit(t.Context(), state, pod, node)
	if status.IsSuccess() {
		return nil, state
	}
	require.True(t, status.IsWait())
	require.Greater(t, timeout, w.args.GroupTimeout.Duration, "the group's end comes first")
	return w.wait(pod), state
}

func TestGroupWaits(t *testing.T) {
	pods := gangOf("g", 3)
	w := newWorld(t, "", append(objects(pods...), gpuNode("n1", 3, 1))...)
	w.took()
	a, _ := w.place(t, pods[0], "n1")
	require.ElementsMatch(t, []string{"g-1", "g-2"}, w.took(), "those that wait out a backoff are tried now, and not the pod itself")
	b, _ := w.place(t, pods[1], "n1")
	for _, waits := range []*waiting{a, b} {
		_, done := waits.is()
		require.False(t, done)
	}
	last, _ := w.place(t, pods[2], "n1")
	require.Nil(t, last)
	for _, waits := range []*waiting{a, b} {
		why, done := waits.is()
		require.True(t, done)
		require.Empty(t, why)
	}
	require.Empty(t, w.forms())
}

func TestIncompleteGroupReservesNothing(t *testing.T) {
	pods := gangOf("g", 3)
	w := newWorld(t, "", append(objects(pods[:2]...), gpuNode("n1", 3, 1))...)
	status := w.preFilter(t, pods[0])
	require.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
	require.Contains(t, status.Message(), "group ns/g has 2 of the 3 pods that must be scheduled together")
	w.took()

	_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pods[2], metav1.CreateOptions{})
	require.NoError(t, err)
	var again []string
	require.Eventually(t, func() bool { again = append(again, w.took()...); return len(again) > 0 }, time.Minute, time.Millisecond)
	require.Contains(t, again, "g-0")
	require.True(t, w.preFilter(t, pods[0]).IsSuccess())
}

func TestGroupReleasesAll(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(w *world, pods []*v1.Pod, states []*cycleState)
		why  string
	}{
		{"a pod does not fit", func(w *world, pods []*v1.Pod, _ []*cycleState) {
			w.PostFilter(t.Context(), newState(), pods[2], nil)
		}, "pod g-2 fits on no node"},
		{"a pod's cycle fails", func(w *world, pods []*v1.Pod, states []*cycleState) {
			w.Unreserve(t.Context(), states[1], pods[1], "n1")
		}, "could not be placed"},
		{"it takes too long", func(w *world, pods []*v1.Pod, _ []*cycleState) {
			w.forms()[gang.Name{Namespace: "ns", Name: "g"}].Reset(0)
		}, "was not complete after 1m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pods := gangOf("g", 3)
			w := newWorld(t, "", append(objects(pods...), gpuNode("n1", 2, 1))...)
			var all []*waiting
			var states []*cycleState
			for _, pod := range pods[:2] {
				waits, state := w.place(t, pod, "n1")
				all, states = append(all, waits), append(states, state)
			}
			tc.end(w, pods, states)
			for i, waits := range all {
				require.Eventually(t, func() bool { _, done := waits.is(); return done }, time.Minute, time.Millisecond)
				why, _ := waits.is()
				require.Contains(t, why, tc.why)
				w.Unreserve(t.Context(), states[i], pods[i], "n1") // what kube-scheduler does then
			}
			for _, pod := range pods {
				require.Empty(t, w.engine.AllocatedNode(string(pod.UID)))
			}
			require.Empty(t, w.forms())
		})
	}
}

// Two groups with half of their GPUs each would wait for each other until both give up.
func TestOfTwoGroupsOneGetsAll(t *testing.T) {
	older, younger := gangOf("older", 2), gangOf("younger", 2)
	for _, pod := range younger {
		pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(time.Second)
	}
	w := newWorld(t, "", append(objects(append(older, younger...)...), gpuNode("n1", 2, 1))...)
	a, _ := w.place(t, older[0], "n1")
	b, state := w.place(t, younger[0], "n1")

	w.noRoom(t, older[1], Name)
	_, done := a.is()
	require.False(t, done, "the older one keeps its GPUs")
	why, _ := b.is()
	require.Contains(t, why, "group ns/younger releases its GPUs for group ns/older")
	w.Unreserve(t.Context(), state, younger[0], "n1")
	last, _ := w.place(t, older[1], "n1")
	require.Nil(t, last)
	why, done = a.is()
	require.True(t, done)
	require.Empty(t, why)
}

// A group waited for GPUs of a group that was being bound.
func TestGroupThatIsBoundReleasesNothing(t *testing.T) {
	older, younger := gangOf("older", 2), gangOf("younger", 2)
	for _, pod := range younger {
		pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(time.Second)
	}
	w := newWorld(t, "", append(objects(append(older, younger...)...), gpuNode("n1", 2, 1))...)
	a, _ := w.place(t, older[0], "n1")
	b, _ := w.place(t, younger[0], "n1")
	b.allowed = true
	require.False(t, w.groups.failed(older[1], true))
	_, done := a.is()
	require.True(t, done, "it releases its own")
}

// noRoom runs a cycle in which that plugin rejects n1.
func (w *world) noRoom(t *testing.T, pod *v1.Pod, plugin string) {
	t.Helper()
	status := w.preFilter(t, pod)
	if status.IsSuccess() {
		status = w.Filter(t.Context(), w.state, pod, on("n1"))
		require.False(t, status.IsSuccess())
	}
	w.PostFilter(t.Context(), w.state, pod, statuses{"n1": status.WithPlugin(plugin)})
}

// statuses are what kube-scheduler has of the nodes.
type statuses map[string]*fwk.Status

func (s statuses) Get(node string) *fwk.Status { return s[node] }
func (s statuses) NodesForStatusCode(fwk.NodeInfoLister, fwk.Code) ([]fwk.NodeInfo, error) {
	return nil, nil
}

// A group that would not fit with the GPUs of other groups takes none.
func TestGroupsKeepTheirGPUs(t *testing.T) {
	hopeless := gangOf("hopeless", 2)
	hopeless[1].Annotations["nvidia.com/use-gputype"] = "A100"
	for name, tc := range map[string]struct {
		older  []*v1.Pod
		plugin string
	}{
		"another plugin refuses":  {gangOf("older", 2), "NodeAffinity"},
		"a pod without GPUs":      {[]*v1.Pod{member(gpuPod("older-0", 60000, 0), "older", 2), member(plainPod("older-1"), "older", 2)}, Name},
		"the group is incomplete": {gangOf("older", 3)[:2], Name},
		"no GPU is of its type":   {hopeless, Name},
	} {
		t.Run(name, func(t *testing.T) {
			younger := gangOf("younger", 2)
			for _, pod := range younger {
				pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(time.Second)
			}
			w := newWorld(t, "", append(objects(append(tc.older, younger...)...), gpuNode("n1", 1, 1))...)
			b, _ := w.place(t, younger[0], "n1")
			w.noRoom(t, tc.older[1], tc.plugin)
			why, done := b.is()
			require.False(t, done, why)
		})
	}
}

func TestYoungerGroupReleases(t *testing.T) {
	older, younger := gangOf("older", 2), gangOf("younger", 2)
	for _, pod := range younger {
		pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(time.Second)
	}
	w := newWorld(t, "", append(objects(append(older, younger...)...), gpuNode("n1", 2, 1))...)
	a, _ := w.place(t, older[0], "n1")
	b, _ := w.place(t, younger[0], "n1")
	w.noRoom(t, younger[1], Name)
	_, done := a.is()
	require.False(t, done)
	_, done = b.is()
	require.True(t, done)
}

func TestStartedGroupDoesNotWait(t *testing.T) {
	pods := gangOf("g", 2)
	more := member(gpuPod("g-more", 1000, 0), "g", 2)
	w := newWorld(t, "", append(objects(pods[0], pods[1], more), gpuNode("n1", 3, 1))...)
	a, _ := w.place(t, pods[0], "n1")
	last, _ := w.place(t, pods[1], "n1")
	require.Nil(t, last)
	_, done := a.is()
	require.True(t, done)
	third, _ := w.place(t, more, "n1") // before the events of the bound pods
	require.NotNil(t, third)

	now := pods[0].DeepCopy()
	now.Spec.NodeName = "n1"
	_, err := w.client.CoreV1().Pods("ns").Update(t.Context(), now, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { why, done := third.is(); return done && why == "" }, time.Minute, time.Millisecond)

	// A pod in place of one that has failed is none too few.
	replaced := member(gpuPod("g-new", 1000, 0), "g", 5)
	require.True(t, w.preFilter(t, replaced).IsSuccess())
	waits, _ := w.place(t, replaced, "n1")
	require.Nil(t, waits)
}

// A pod begins to wait while the first of its group is bound: kube-scheduler doesn't list it among those that
// wait yet when that event comes, but it does at the next one.
func TestPodWaitsWhileGroupIsBound(t *testing.T) {
	pods := gangOf("g", 2)
	more := member(gpuPod("g-more", 1000, 0), "g", 2)
	w := newWorld(t, "", append(objects(pods[0], pods[1], more), gpuNode("n1", 3, 1))...)
	require.True(t, w.preFilter(t, more).IsSuccess())
	status, _ := w.Permit(t.Context(), w.state, more, "n1")
	require.True(t, status.IsWait())
	now := pods[0].DeepCopy()
	now.Spec.NodeName = "n1"
	now, err := w.client.CoreV1().Pods("ns").Update(t.Context(), now, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.forms()) == 0 }, time.Minute, time.Millisecond)
	waits := w.wait(more)
	now.Labels["any"] = "event"
	_, err = w.client.CoreV1().Pods("ns").Update(t.Context(), now, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { why, done := waits.is(); return done && why == "" }, time.Minute, time.Millisecond)
}

// A group may have pods without GPUs: a launcher.
func TestPodWithoutGPUsWaits(t *testing.T) {
	launcher, worker := member(plainPod("launcher"), "g", 2), member(gpuPod("worker", 1000, 0), "g", 2)
	w := newWorld(t, "", launcher, worker, gpuNode("n1", 1, 1))
	require.True(t, w.preFilter(t, launcher).IsSkip())
	status, _ := w.Permit(t.Context(), w.state, launcher, "n1")
	require.True(t, status.IsWait())
	waits := w.wait(launcher)
	last, _ := w.place(t, worker, "n1")
	require.Nil(t, last)
	_, done := waits.is()
	require.True(t, done)
	status, _ = w.Permit(t.Context(), newState(), plainPod("single"), "n1")
	require.True(t, status.IsSuccess())
}

// Otherwise a group that does not fit would retry itself by releasing its GPUs.
func TestGroupDoesNotRetryItself(t *testing.T) {
	pods, other := gangOf("g", 2), gpuPod("other", 1000, 0)
	w := newWorld(t, "", append(objects(pods...), other, gpuNode("n1", 1, 1))...)
	hint := func(gone *v1.Pod) fwk.QueueingHint {
		h, err := w.afterPodDelete(klog.Background(), pods[1], gone, nil)
		require.NoError(t, err)
		return h
	}
	require.Equal(t, fwk.QueueSkip, hint(pods[0]), "kube-scheduler reports this for a pod that releases its node")
	require.Equal(t, fwk.Queue, hint(other))
	require.NoError(t, w.client.CoreV1().Pods("ns").Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return !w.groups.exists(pods[0]) }, time.Minute, time.Millisecond)
	require.Equal(t, fwk.Queue, hint(pods[0]))
}

func TestGroupTopology(t *testing.T) {
	node := func(name, rack string, first int) *v1.Node {
		n := gpuNode(name, 1, first)
		n.Labels = map[string]string{"rack": rack}
		return n
	}
	full := gpuPod("full", 60000, 0)
	pods := gangOf("g", 2)
	w := newWorld(t, `{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupTopology":["clique","rack"]}`,
		append(objects(pods...), node("n1", "a", 1), node("n2", "b", 2), node("n3", "b", 3), node("n4", "a", 4))...)
	w.placed(t, full, "n1") // rack a has room for one of the two
	result, status := w.PreFilter(t.Context(), w.state, pods[0], nil)
	require.True(t, status.IsSuccess())
	require.ElementsMatch(t, []string{"n2", "n3"}, result.NodeNames.UnsortedList())

	// Another plugin refuses these nodes: then all count.
	w.took()
	w.PostFilter(t.Context(), w.state, pods[0], statuses{})
	require.Equal(t, []string{"g-0"}, w.took())
	w.state = newState()
	result, status = w.PreFilter(t.Context(), w.state, pods[0], nil)
	require.True(t, status.IsSuccess())
	require.Len(t, result.NodeNames, 4)

	for _, pod := range pods {
		pod.Annotations[api.AnnotationGroupTopology] = "rack"
		_, err := w.client.CoreV1().Pods("ns").Update(t.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return w.groups.of(pods[0]).Topology() == "rack" }, time.Minute, time.Millisecond)
	w.state = newState()
	result, status = w.PreFilter(t.Context(), w.state, pods[0], nil)
	require.True(t, status.IsSuccess())
	require.ElementsMatch(t, []string{"n2", "n3"}, result.NodeNames.UnsortedList(), "a required domain is not left")
	require.Equal(t, fwk.Success, w.filter(t, w.state, pods[0], "n2"))
	require.Equal(t, fwk.UnschedulableAndUnresolvable, w.filter(t, w.state, pods[0], "n4"), "also if it is nominated")
	w.placed(t, gpuPod("more", 60000, 0), "n2")
	status = w.preFilter(t, pods[0])
	require.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
	require.Contains(t, status.Message(), "no value of the node label rack has nodes on which all of its 2 pods fit")
}
