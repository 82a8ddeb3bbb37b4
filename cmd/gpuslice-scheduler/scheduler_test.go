package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
)

func TestBulkOfHalfGPUsFillsEachGPUWithTwo(t *testing.T) {
	c := start(t, node("n1", 8))
	for i := range 16 {
		c.create(gpuPod(fmt.Sprintf("p%d", i), 0, 40000, 50))
	}
	for i := range 16 {
		name := fmt.Sprintf("p%d", i)
		c.until(name, func() bool { return c.bound(name) })
	}
	taken := c.taken()
	require.Len(t, taken, 8)
	for gpu, shares := range taken {
		require.Equal(t, []int64{40000, 40000}, shares, gpu)
	}
}

func TestPreemption(t *testing.T) {
	for _, tc := range []struct {
		name                string
		memory, cores       int64 // of the two that are there
		wanted, wantedCores int64
	}{
		{"only by memory", 40000, 0, 60000, 0},
		{"only by cores", 1000, 50, 1000, 80},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, node("n1", 1))
			for _, name := range []string{"low-a", "low-b"} {
				c.create(gpuPod(name, 0, tc.memory, tc.cores))
				c.until(name, func() bool { return c.bound(name) })
			}
			c.create(gpuPod("high", 100, tc.wanted, tc.wantedCores))
			c.until("high is placed", func() bool { return c.bound("high") })
			require.Nil(t, c.pod("low-a"))
			require.Nil(t, c.pod("low-b"))
			require.Len(t, c.taken(), 1)
		})
	}
}

func TestPreemptionTakesNoMoreThanItNeeds(t *testing.T) {
	c := start(t, node("n1", 2))
	for _, name := range []string{"low-a", "low-b", "low-c", "low-d"} {
		c.create(gpuPod(name, 0, 40000, 0))
		c.until(name, func() bool { return c.bound(name) })
	}
	c.create(gpuPod("high", 100, 40000, 0))
	c.until("high is placed", func() bool { return c.bound("high") })
	left := 0
	for _, name := range []string{"low-a", "low-b", "low-c", "low-d"} {
		if pod := c.pod(name); pod != nil && pod.DeletionTimestamp == nil {
			left++
		}
	}
	require.Equal(t, 3, left)

	// No pod is evicted for one that fits on no node or has no higher priority.
	c.create(gpuPod("too-big", 100, 90000, 0))
	require.Contains(t, c.rejected("too-big"), "with less than 90000 MiB free")
	c.create(gpuPod("equal", 0, 40000, 0))
	require.Contains(t, c.rejected("equal"), "n1: 2 GPUs: 2 with less than 40000 MiB free (most: 0 MiB)")
	require.True(t, c.bound("high"))
}

func TestFreedGPUIsAssignedToPendingPod(t *testing.T) {
	c := start(t, node("n1", 1))
	c.create(gpuPod("first", 0, 60000, 0))
	c.until("first", func() bool { return c.bound("first") })
	c.create(gpuPod("second", 0, 60000, 0))
	require.Contains(t, c.rejected("second"), "0/1 nodes are available: 1 node(s): GPUs have too little free memory")
	c.delete("first")
	c.until("second", func() bool { return c.bound("second") })
}

// An agent that starts again takes its node's replicas away for a moment: NodeResourcesFit refuses the
// pod, and its queueing hint ignores ignoredResources.
func TestNodeWithMoreAllocatable(t *testing.T) {
	away := node("n1", 1)
	away.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0")
	c := start(t, away)
	c.create(gpuPod("p", 0, 60000, 0))
	require.Contains(t, c.rejected("p"), "Insufficient nvidia.com/gpu")
	_, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), node("n1", 1), metav1.UpdateOptions{})
	require.NoError(t, err)
	c.until("p", func() bool { return c.bound("p") })
}

func TestInvalidRequest(t *testing.T) {
	c := start(t, node("n1", 1))
	c.create(gpuPod("p", 0, 0, 150))
	require.Contains(t, c.rejected("p"), `container "main": nvidia.com/gpucores: 150: is percent of each GPU: request at most 100`)
}

func gang(name string, n int) (pods []*v1.Pod) {
	for i := range n {
		pod := gpuPod(fmt.Sprintf("%s-%d", name, i), 0, 60000, 0)
		pod.Labels = map[string]string{api.LabelGroup: name}
		pod.Annotations = map[string]string{api.AnnotationGroupMin: fmt.Sprint(n)}
		pods = append(pods, pod)
	}
	return pods
}

func TestGroup(t *testing.T) {
	c := start(t, node("n1", 3))
	pods := gang("g", 3)
	c.create(pods[:2]...)
	require.Contains(t, c.rejected("g-0"), "of the 3 pods that must be scheduled together")
	require.Empty(t, c.taken())
	c.create(pods[2])
	for _, pod := range pods {
		c.until(pod.Name, func() bool { return c.bound(pod.Name) })
	}
}

// 10 groups of 3 for 4 GPUs, their pods created in turn, so that several have a part: each is placed, one after the
// other, and no group is ever placed in part.
func TestGroupsCompete(t *testing.T) {
	c := start(t, node("n1", 4))
	left := map[string][]*v1.Pod{}
	for n := range 10 {
		name := fmt.Sprintf("g%d", n)
		left[name] = gang(name, 3)
	}
	for i := range 3 {
		for n := range 10 {
			c.create(left[fmt.Sprintf("g%d", n)][i])
		}
	}
	for len(left) > 0 {
		var whole string
		c.until("a group is placed", func() bool {
			for name, pods := range left {
				bound := 0
				for _, pod := range pods {
					if c.bound(pod.Name) {
						bound++
					}
				}
				if bound == len(pods) {
					whole = name
					return true
				}
			}
			return false
		})
		bound := map[string]int{}
		for name, pods := range left {
			for _, pod := range pods {
				if c.bound(pod.Name) {
					bound[name]++
				}
			}
		}
		require.Equal(t, map[string]int{whole: 3}, bound, "4 GPUs have room for one group")
		for _, pod := range left[whole] {
			c.delete(pod.Name)
		}
		delete(left, whole)
	}
}

// A PodGroup's label without a minimum placed 4 of 6 pods on 4 GPUs.
func TestGroupWithoutMinimum(t *testing.T) {
	c := start(t, node("n1", 4))
	pods := gang("g", 6)
	for _, pod := range pods {
		pod.Annotations = nil
	}
	c.create(pods...)
	for _, pod := range pods {
		require.Contains(t, c.rejected(pod.Name), "it is not known how many pods must be scheduled together")
	}
	require.Empty(t, c.taken())
}

func TestGroupThatDoesNotFit(t *testing.T) {
	c := start(t, node("n1", 2))
	pods := gang("g", 3)
	c.create(pods...)
	c.until("all have had their turn", func() bool {
		var why []string
		for _, pod := range pods {
			why = append(why, c.rejected(pod.Name))
		}
		return strings.Contains(strings.Join(why, "\n"), "none of its pods is scheduled")
	})
	require.Empty(t, c.taken())
	// What it had is free again.
	for _, name := range []string{"a", "b"} {
		c.create(gpuPod(name, 0, 60000, 0))
	}
	c.until("a", func() bool { return c.bound("a") })
	c.until("b", func() bool { return c.bound("b") })
}

func TestTwoGroupsForTheSameGPUs(t *testing.T) {
	c := start(t, node("n1", 3))
	a, b := gang("a", 3), gang("b", 3)
	for i := range 3 {
		c.create(a[i], b[i]) // one after the other, so that each has a part
	}
	all := func(pods []*v1.Pod) bool {
		for _, pod := range pods {
			if !c.bound(pod.Name) {
				return false
			}
		}
		return true
	}
	c.until("one of them is placed", func() bool { return all(a) || all(b) })
	first, second := a, b
	if all(b) {
		first, second = b, a
	}
	require.Len(t, c.taken(), 3)
	for _, pod := range second {
		require.False(t, c.bound(pod.Name))
	}
	for _, pod := range first {
		c.delete(pod.Name)
	}
	c.until("then the other", func() bool { return all(second) })
}

// A forged grant is worth nothing: what is bound has what it asked for.
func TestForgedAnnotations(t *testing.T) {
	c := start(t, node("n1", 2))
	forged := gpuPod("forged", 0, 1000, 10)
	forged.Annotations = map[string]string{
		api.AnnotationGrant:            `{"version":1,"node":"n1","containers":{"main":[{"uuid":"GPU-00000000-0000-0000-0000-000000000001","memoryMiB":80000,"cores":100}]}}`,
		api.AnnotationSignature:        "v1:0123456789abcdef:" + strings.Repeat("0", 128),
		api.AnnotationHAMiAllocated:    "GPU-00000000-0000-0000-0000-000000000001,NVIDIA,80000,100:;",
		"hami.io/vgpu-mig-allocations": "[]",
	}
	without := gpuPod("without-gpus", 0, 0, 0)
	without.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	without.Annotations = map[string]string{api.AnnotationGrant: forged.Annotations[api.AnnotationGrant], "mine": "stays"}
	c.create(forged, without)
	c.until("forged", func() bool { return c.bound("forged") })
	c.until("without-gpus", func() bool { return c.bound("without-gpus") })
	require.Equal(t, map[string]string{"mine": "stays"}, c.pod("without-gpus").Annotations)
	now := c.pod("forged").Annotations
	require.NotContains(t, now, "hami.io/vgpu-mig-allocations")
	require.NotContains(t, now, api.AnnotationSignature, "there is no key here")
	for gpu, shares := range c.taken() {
		require.Equal(t, []int64{1000}, shares, gpu)
	}
}

func TestHelp(t *testing.T) {
	for _, tc := range []struct {
		args        []string
		has, hasNot string
	}{
		{[]string{"--help"}, "--leader-elect", "--our-scheduler"},
		{[]string{"extender", "--help"}, "--group-timeout", "--authentication-kubeconfig"},
		{[]string{"webhook", "--help"}, "--our-scheduler", "--authentication-kubeconfig"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			root := command()
			root.SetOut(&out)
			root.SetErr(&out)
			root.SetArgs(tc.args)
			require.NoError(t, root.Execute())
			require.Contains(t, out.String(), tc.has)
			require.NotContains(t, out.String(), tc.hasNot)
			require.Contains(t, out.String(), "gpuslice-scheduler")
		})
	}
}

func TestBadSettings(t *testing.T) {
	for _, args := range [][]string{
		{"extender", "--config=/nonexistent"}, {"webhook", "--config=/nonexistent"},
		{"extender", "--kubeconfig=/nonexistent"}, {"webhook", "--kubeconfig=/nonexistent"},
		{"extender", "more"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			root := command()
			root.SetArgs(args)
			root.SetErr(&bytes.Buffer{})
			root.SetOut(&bytes.Buffer{})
			require.Error(t, root.Execute())
		})
	}
}

// A pod that runs gets more; a pod that comes then finds the GPU as full as it is.
func TestResize(t *testing.T) {
	c := start(t, node("n1", 1))
	c.create(gpuPod("first", 0, 40000, 30))
	c.until("first is placed", func() bool { return c.bound("first") })
	ask := func(value string) {
		_, err := c.CoreV1().Pods("ns").Patch(context.Background(), "first", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"gpuslice.io/resize":`+value+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	answered := func() bool {
		_, asked := c.pod("first").Annotations[api.AnnotationResize]
		return !asked
	}
	ask(`"{\"main\":{\"memoryMiB\":60000}}"`)
	c.until("it is resized", answered)
	require.Contains(t, c.pod("first").Annotations[api.AnnotationResizeStatus], `"outcome":"reserved"`)
	for _, shares := range c.taken() {
		require.Equal(t, []int64{60000}, shares)
	}
	c.create(gpuPod("second", 0, 30000, 30))
	c.create(gpuPod("third", 0, 20000, 30))
	c.until("third is placed", func() bool { return c.bound("third") })
	require.False(t, c.bound("second"))
	ask(`"{\"main\":{\"memoryMiB\":70000}}"`)
	c.until("it is refused", answered)
	require.Contains(t, c.pod("first").Annotations[api.AnnotationResizeStatus], `"outcome":"refused"`)
	ask(`"{\"main\":{\"memoryMiB\":20000}}"`)
	c.until("second is placed on the released GPU", func() bool { return c.bound("second") })
}
