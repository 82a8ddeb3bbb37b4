package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

// preempting switches group preemption on.
func preempting(t *testing.T) *config.KubeSchedulerConfiguration {
	t.Helper()
	c := configuration(t, shipped)
	for i := range c.Profiles[0].PluginConfig {
		if one := &c.Profiles[0].PluginConfig[i]; one.Name == plugin.Name {
			one.Args = &runtime.Unknown{Raw: []byte(`{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupPreemption":true}`)}
		}
	}
	return c
}

// important is a group of that priority.
func important(name string, n int, priority int32) []*v1.Pod {
	pods := gang(name, n)
	for _, pod := range pods {
		pod.Spec.Priority = &priority
	}
	return pods
}

// fill binds a pod for each GPU, with growing priorities.
func (c *cluster) fill(n int) {
	c.t.Helper()
	for i := range n {
		name := fmt.Sprint("low-", i)
		c.create(gpuPod(name, int32(i), 60000, 0))
		c.until(name, func() bool { return c.bound(name) })
	}
}

func (c *cluster) allBound(pods []*v1.Pod) bool {
	for _, pod := range pods {
		if !c.bound(pod.Name) {
			return false
		}
	}
	return true
}

// stays reports whether the pod is there and does not end.
func (c *cluster) stays(name string) bool {
	pod := c.pod(name)
	return pod != nil && pod.DeletionTimestamp == nil
}

// Of kube-scheduler's own preemption each pod of the group would evict by itself.
func TestGroupPreempts(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 2), nodeFrom("n2", 2, 2))
	c.fill(4)
	pods := important("g", 3, 100)
	c.create(pods...)
	c.until("the group is placed", func() bool { return c.allBound(pods) })
	for i := range 3 {
		require.Nil(t, c.pod(fmt.Sprint("low-", i)), "the least important ones")
	}
	require.True(t, c.stays("low-3"))
	require.Len(t, c.taken(), 4)
	for gpu, shares := range c.taken() {
		require.Len(t, shares, 1, gpu)
	}
}

// The group would not fit with all evictions: none is made, not for one of its pods either.
func TestGroupThatDoesNotFitPreemptsNone(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 3))
	c.fill(2)
	c.create(gpuPod("high", 200, 60000, 0))
	c.until("high", func() bool { return c.bound("high") })
	pods := important("g", 3, 100)
	c.create(pods...)
	for _, pod := range pods {
		require.NotEmpty(t, c.rejected(pod.Name))
	}
	// A later pod shows that the group keeps no room.
	c.delete("low-0")
	c.create(gpuPod("later", 0, 60000, 0))
	c.until("later", func() bool { return c.bound("later") })
	require.True(t, c.stays("low-1"))
	require.True(t, c.stays("high"))
}

func TestGroupIsEvictedWhole(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 2), nodeFrom("n2", 2, 2))
	victims := gang("victims", 3)
	launcher := gpuPod("launcher", 0, 0, 0)
	launcher.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	launcher.Labels = map[string]string{api.LabelGroup: "victims"}
	launcher.Annotations = map[string]string{api.AnnotationGroupMin: "3"}
	c.create(append(victims, launcher)...)
	c.until("victims", func() bool { return c.allBound(append(victims, launcher)) })
	pods := important("g", 2, 100)
	c.create(pods...)
	c.until("the group is placed", func() bool { return c.allBound(pods) })
	for _, pod := range append(victims, launcher) {
		c.until(pod.Name+" is gone", func() bool { return c.pod(pod.Name) == nil })
	}
}

func TestGroupAvoidsViolationsOfBudgets(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "low-0"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}
	c := startWith(t, preempting(t), node("n1", 2), nodeFrom("n2", 2, 2), budget)
	for i := range 4 {
		pod := gpuPod(fmt.Sprint("low-", i), int32(i), 60000, 0)
		if i == 0 {
			pod.Labels = map[string]string{"app": "kept"}
		}
		c.create(pod)
		c.until(pod.Name, func() bool { return c.bound(pod.Name) })
	}
	pods := important("g", 3, 100)
	c.create(pods...)
	c.until("the group is placed", func() bool { return c.allBound(pods) })
	require.True(t, c.stays("low-0"))
}

// Two groups with room for one of them: the more important one is placed, whichever plans first.
func TestTwoGroupsPreempt(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 3))
	c.fill(3)
	a, b := important("a", 2, 100), important("b", 2, 200)
	for i := range 2 {
		c.create(a[i], b[i])
	}
	c.until("b is placed", func() bool { return c.allBound(b) })
	for _, pod := range a {
		require.False(t, c.bound(pod.Name))
	}
}

// endLate has pods that are deleted end only when end is called.
func (c *cluster) endLate() (end func()) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	var mu sync.Mutex
	var names []string
	ended := false
	c.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		name := a.(clienttesting.DeleteAction).GetName()
		object, err := c.Tracker().Get(pods, "ns", name)
		if ended || err != nil || object.(*v1.Pod).Spec.NodeName == "" {
			return false, nil, nil
		}
		pod := object.(*v1.Pod).DeepCopy()
		now := metav1.Now()
		pod.DeletionTimestamp = &now
		names = append(names, name)
		return true, nil, c.Tracker().Update(pods, pod, "ns")
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		for _, name := range names {
			_ = c.Tracker().Delete(pods, "ns", name)
		}
	}
}

// ending are the names of pods that are deleted and have not ended.
func (c *cluster) ending() (names []string) {
	pods, err := c.CoreV1().Pods("ns").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			names = append(names, pod.Name)
		}
	}
	return names
}

// Pods of the same priority come while the victims end: the room stays the group's.
func TestRoomIsKeptForGroup(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 2))
	end := c.endLate()
	c.fill(2)
	pods := important("g", 2, 100)
	c.create(pods...)
	c.until("both are evicted", func() bool { return len(c.ending()) == 2 })
	for i := range 4 {
		c.create(gpuPod(fmt.Sprint("same-", i), 100, 60000, 0))
		require.NotEmpty(t, c.rejected(fmt.Sprint("same-", i)))
	}
	end()
	c.until("the group is placed", func() bool { return c.allBound(pods) })
	for i := range 4 {
		require.False(t, c.bound(fmt.Sprint("same-", i)))
	}
}

// A plan survived the deletion of its group.
func TestRoomIsReleasedWithoutTheGroup(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 3))
	end := c.endLate()
	c.fill(3)
	pods := important("g", 2, 100)
	c.create(pods...)
	c.until("two are evicted", func() bool { return len(c.ending()) == 2 })
	for i := range 2 {
		c.create(gpuPod(fmt.Sprint("later-", i), 0, 60000, 0))
		require.NotEmpty(t, c.rejected(fmt.Sprint("later-", i)))
	}
	c.delete("g-1")
	end()
	c.until("the room is released", func() bool { return c.bound("later-0") && c.bound("later-1") })
	require.True(t, c.stays("low-2"))
	require.False(t, c.bound("g-0"))
}

// The API server refuses an eviction for a while: no part of the plan is forgotten.
func TestEvictionIsRepeated(t *testing.T) {
	for name, failure := range map[string]error{
		"refused": apierrors.NewForbidden(v1.Resource("pods"), "low-1", errors.New("a policy")),
		"unknown": apierrors.NewInternalError(errors.New("timeout")),
	} {
		t.Run(name, func(t *testing.T) {
			c := startWith(t, preempting(t), node("n1", 3))
			c.fill(3)
			var failures atomic.Int32
			c.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.(clienttesting.DeleteAction).GetName() == "low-1" && failures.Add(1) < 3 {
					return true, nil, failure
				}
				return false, nil, nil
			})
			pods := important("g", 2, 100)
			c.create(pods...)
			c.until("the group is placed", func() bool { return c.allBound(pods) })
			require.True(t, c.stays("low-2"))
			require.GreaterOrEqual(t, failures.Load(), int32(3))
		})
	}
}

// A new leader knows no plans: it evicts no others for the group, and keeps its room.
func TestNewLeaderGoesOnWithGroup(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 4))
	end := c.endLate()
	c.fill(4)
	pods := important("g", 2, 100)
	c.create(pods...)
	c.until("two are evicted", func() bool { return len(c.ending()) == 2 })
	c.stop()
	c.run(t, preempting(t))
	c.create(gpuPod("later", 0, 60000, 0))
	require.NotEmpty(t, c.rejected("later"))
	end()
	c.until("the group is placed", func() bool { return c.allBound(pods) })
	require.False(t, c.bound("later"))
	require.True(t, c.stays("low-2"))
	require.True(t, c.stays("low-3"))
}

// The node of a victim fails while it ends: the plan ends, and the group gets another one.
func TestGroupPlansAgain(t *testing.T) {
	c := startWith(t, preempting(t), node("n1", 1), nodeFrom("n2", 1, 1), nodeFrom("n3", 2, 1))
	end := c.endLate()
	c.fill(3)
	pods := important("g", 2, 100)
	c.create(pods...)
	c.until("two are evicted", func() bool { return len(c.ending()) == 2 })
	broken, err := c.CoreV1().Nodes().Get(t.Context(), c.pod(c.ending()[0]).Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	broken.Spec.Unschedulable = true
	_, err = c.CoreV1().Nodes().Update(t.Context(), broken, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.until("the rights end", func() bool {
		return c.pod("g-0").Status.NominatedNodeName == "" || c.pod("g-1").Status.NominatedNodeName == ""
	})
	end()
	for _, pod := range pods {
		require.False(t, c.bound(pod.Name))
	}
}

var storms = flag.Int("storms", 8, "how many storms of groups are played")

// Many groups with different priorities are created at once, on fewer GPUs than they need: each is placed whole or not at all,
// and the most important one is.
func TestGroupsPreemptAtOnce(t *testing.T) {
	for seed := range uint64(*storms) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			var nodes []runtime.Object
			for gpus, of := 0, 1+random.IntN(4); gpus < 6; gpus += of {
				of = min(of, 6-gpus)
				nodes = append(nodes, nodeFrom(fmt.Sprint("n", gpus), gpus, of))
			}
			c := startWith(t, preempting(t), nodes...)
			groups := map[string][]*v1.Pod{}
			var pods []*v1.Pod
			for i, priority := range random.Perm(6) {
				name := fmt.Sprint("g", i)
				groups[name] = important(name, 2+random.IntN(4), int32(100*(priority+1)))
				memory := *resource.NewQuantity(int64(20000*(1+random.IntN(3))), resource.DecimalSI)
				for _, pod := range groups[name] {
					pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpumem"] = memory
				}
				pods = append(pods, groups[name]...)
			}
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			c.create(pods...)
			c.until("each group is whole", func() bool {
				for _, of := range groups {
					bound, there := 0, 0
					for _, pod := range of {
						now := c.pod(pod.Name)
						if now == nil {
							continue
						}
						there++
						if now.Spec.NodeName != "" {
							bound++
						}
					}
					placed := bound == len(of)
					if most := *of[0].Spec.Priority == 600; most && !placed || !placed && bound > 0 || there > 0 && there < len(of) {
						return false
					}
				}
				return true
			})
		})
	}
}

// kube-scheduler's own preemption serves a pod of a group that requests no GPUs, with and without preemption for groups.
func TestPodOfGroupWithoutGPUsPreempts(t *testing.T) {
	for name, settings := range map[string]*config.KubeSchedulerConfiguration{"off": configuration(t, shipped), "on": preempting(t)} {
		t.Run(name, func(t *testing.T) {
			c := startWith(t, settings, node("n1", 1))
			withCPUs := func(pod *v1.Pod, n string) *v1.Pod {
				list := v1.ResourceList{"cpu": resource.MustParse(n)}
				pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
				return pod
			}
			c.create(withCPUs(gpuPod("low", 0, 0, 0), "60"))
			c.until("low", func() bool { return c.bound("low") })
			pods := important("g", 2, 100)
			withCPUs(pods[0], "10")
			c.create(pods...)
			c.until("the group is placed", func() bool { return c.allBound(pods) })
			require.Nil(t, c.pod("low"))
		})
	}
}
