package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
)

func anyNode(_, _ string) bool { return true }

// groupOf are so many pods that request most of a GPU each.
func groupOf(n int, priority int32) (pods []*scheduler.Pod) {
	for i := range n {
		pods = append(pods, inNamespace(podOf(fmt.Sprint("g", i), "1/60000/0"), "ns", priority))
	}
	return pods
}

// low fills a GPU of the node.
func (e *testedEngine) low(name string, node int, priority int32) {
	e.SetPod(place(e.t, e.Engine, inNamespace(podOf(name, "1/60000/0"), "ns", priority), nodeName(node)))
}

type testedEngine struct {
	*Engine
	t *testing.T
}

func newTestedEngine(t *testing.T, nodes int) *testedEngine {
	e := &testedEngine{newEngine(t, Options{}), t}
	for i := range nodes {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 1)...))
	}
	return e
}

// Evicting the pods that one pod of the group needs, as kube-scheduler does, is of no use if the others have no room.
func TestRoomForGroupIsWholeOrNone(t *testing.T) {
	e := newTestedEngine(t, 3)
	for i := range 3 {
		e.low(fmt.Sprint("low", i), i, int32(i))
	}
	room := e.RoomForGroup(e.Snapshot(), groupOf(2, 5), anyNode, all)
	require.Equal(t, []string{"low0", "low1"}, uids(room.Victims), "the least important ones")
	require.Equal(t, map[string]string{"g0": nodeName(0), "g1": nodeName(1)}, room.Nodes)
	require.Nil(t, e.RoomForGroup(e.Snapshot(), groupOf(4, 5), anyNode, all), "there is room for three")
	require.Nil(t, e.RoomForGroup(e.Snapshot(), groupOf(2, 1), anyNode, all), "one of the others is less important")
	mixed := groupOf(2, 5)
	mixed[1].Priority = 1
	require.Nil(t, e.RoomForGroup(e.Snapshot(), mixed, anyNode, all), "the least important pod of the group counts")
	require.Nil(t, e.RoomForGroup(e.Snapshot(), groupOf(3, 5), anyNode, func(v Victim) bool { return v.UID != "low1" }))
	room = e.RoomForGroup(e.Snapshot(), groupOf(2, 5), func(_, node string) bool { return node != nodeName(0) }, all)
	require.Equal(t, []string{"low1", "low2"}, uids(room.Victims))
	large := append(groupOf(1, 5), inNamespace(podOf("large", "1/90000/0"), "ns", 5))
	require.Nil(t, e.RoomForGroup(e.Snapshot(), large, anyNode, all), "a GPU has 80,000 MiB")
}

// GPUs that are free, and those that pods of the group have reserved, are used before pods are evicted.
func TestRoomForGroupUsesFreeGPUs(t *testing.T) {
	e := newTestedEngine(t, 4)
	e.low("low0", 0, 0)
	e.low("low1", 1, 0)
	pods := groupOf(3, 5)
	_, err := e.Reserve(pods[0], requestOf(t, e.Engine, pods[0]), nodeName(2), "test")
	require.NoError(t, err)
	room := e.RoomForGroup(e.Snapshot(), pods, anyNode, all)
	require.Len(t, room.Victims, 1)
	require.Empty(t, e.RoomForGroup(e.Snapshot(), pods[:2], anyNode, all).Victims)
	other := inNamespace(podOf("waits", "1/60000/0"), "ns", 0)
	_, err = e.Reserve(other, requestOf(t, e.Engine, other), nodeName(3), "test")
	require.NoError(t, err)
	room = e.RoomForGroup(e.Snapshot(), pods, anyNode, all)
	require.ElementsMatch(t, []string{"low0", "low1"}, uids(room.Victims), "a pod that is not bound is not evicted")
}

// When the victims have gone, every pod of the group gets GPUs on its node, beside the others. No victim is more important.
func TestRoomForGroupIsRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
		priorities := map[string]int32{}
		for i := range nodes {
			e.SetNode(nodeOf(nodeName(i), h100s(i, rapid.IntRange(1, 2).Draw(t, "gpus"))...))
			for k := range rapid.IntRange(0, 4).Draw(t, "running") {
				p := inNamespace(podOf(fmt.Sprint("r", i, k), fmt.Sprintf("1/%d/%d", rapid.Int64Range(10, 60).Draw(t, "MiB")*1000,
					rapid.IntRange(0, 60).Draw(t, "cores"))), "ns", rapid.Int32Range(0, 4).Draw(t, "priority"))
				if _, err := e.Reserve(p, requestOf(t, e, p), nodeName(i), "test"); err == nil {
					e.Unreserve(p.UID, "test")
					e.SetPod(place(t, e, p, nodeName(i)))
					priorities[p.UID] = p.Priority
				}
			}
		}
		lowest := rapid.Int32Range(0, 5).Draw(t, "group's priority")
		var pods []*scheduler.Pod
		for i := range rapid.IntRange(1, 5).Draw(t, "pods") {
			pods = append(pods, inNamespace(podOf(fmt.Sprint("g", i), fmt.Sprintf("%d/%d/%d", rapid.IntRange(1, 2).Draw(t, "gpus"),
				rapid.Int64Range(10, 80).Draw(t, "MiB")*1000, rapid.IntRange(0, 100).Draw(t, "cores"))), "ns", lowest+rapid.Int32Range(0, 1).Draw(t, "more")))
		}
		least := slices.MinFunc(pods, func(a, b *scheduler.Pod) int { return int(a.Priority - b.Priority) }).Priority
		room := e.RoomForGroup(e.Snapshot(), pods, anyNode, all)
		if room == nil {
			return
		}
		for _, v := range room.Victims {
			require.Less(t, priorities[v.UID], least)
			e.DeletePod(v.UID)
		}
		require.Len(t, room.Nodes, len(pods))
		slices.SortStableFunc(pods, func(a, b *scheduler.Pod) int {
			return int(requestOf(t, e, b).GPUMemory() - requestOf(t, e, a).GPUMemory())
		})
		for _, p := range pods {
			_, err := e.Reserve(p, requestOf(t, e, p), room.Nodes[p.UID], "test")
			require.NoError(t, err)
		}
	})
}
