package plugin

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// fullNodes is how many nodes may turn out to lack CPU or memory before no pods are evicted.
const fullNodes = 8

// preemptTogether evicts pods of lower priority if then all pods of the group that are needed fit, and none otherwise.
// DefaultPreemption would make room for one pod, of no use without room for the others. It returns the pod's node; "" if there
// is none.
func (p *Plugin) preemptTogether(ctx context.Context, object *v1.Pod, c *cycle) (node string) {
	now := p.groups.of(object)
	if now == nil || !now.MustWait() || !now.Complete() || now.Topology() != "" {
		return ""
	}
	pods := now.Needed()
	if p.evictor.Waits(pods[0].UID) {
		p.groups.mu.Lock()
		defer p.groups.mu.Unlock()
		return p.groups.nodes[now.Name][object.UID]
	}
	if slices.ContainsFunc(pods, func(p *v1.Pod) bool { return !kube.MayPreempt(p) }) {
		return ""
	}
	room := p.roomFor(pods, c.evaluation.Snapshot())
	if room == nil || len(room.Victims) == 0 || !p.evictor.EvictTogether(ctx, pods[0], room.Victims) {
		return ""
	}
	nodes := map[types.UID]string{}
	for uid, node := range room.Nodes {
		nodes[types.UID(uid)] = node
	}
	p.groups.mu.Lock()
	p.groups.nodes[now.Name] = nodes
	p.groups.mu.Unlock()
	for _, other := range pods {
		if at := nodes[other.UID]; at != "" && other.UID != object.UID {
			if err := kube.Nominate(ctx, p.handle.ClientSet(), other, at); err != nil {
				p.log.Warn("failed to write the node that a pod waits for", "pod", other.Namespace+"/"+other.Name, "node", at, "error", err)
			}
		}
	}
	return nodes[object.UID]
}

// roomFor leaves out nodes that other plugins would refuse.
func (p *Plugin) roomFor(objects []*v1.Pod, s *engine.Snapshot) *engine.Room {
	accepts := map[string]*acceptance{}
	pods := make([]*scheduler.Pod, len(objects))
	for i, object := range objects {
		pods[i] = kube.Pod(object)
		pods[i].Annotations = kube.Unowned(pods[i].Annotations)
		accepts[pods[i].UID] = p.informerSync.accepts(object)
	}
	evictable, full := p.evictable(), map[string]bool{}
	for range fullNodes {
		room := p.engine.RoomForGroup(s, pods, func(pod, node string) bool {
			return !full[node] && accepts[pod].allows(accepts[pod].nodes[node], hard)
		}, evictable)
		if room == nil {
			return nil
		}
		before := len(full)
		for _, node := range p.informerSync.overfull(room, accepts) {
			full[node] = true
		}
		if len(full) == before {
			return room
		}
	}
	return nil
}

// overfull are the nodes that lack CPU, memory, storage or room for pods when the victims are gone and the pods are there.
func (s *informerSync) overfull(room *engine.Room, pods map[string]*acceptance) (nodes []string) {
	gone := map[string]bool{}
	for _, v := range room.Victims {
		gone[v.UID] = true
	}
	type sum struct{ pods, cpu, memory, storage int64 }
	free := map[string]*sum{}
	add := func(node string, requests v1.ResourceList, by int64) {
		cpu, memory, storage := requests[v1.ResourceCPU], requests[v1.ResourceMemory], requests[v1.ResourceEphemeralStorage]
		f := free[node]
		f.pods += by
		f.cpu += by * cpu.MilliValue()
		f.memory += by * memory.Value()
		f.storage += by * storage.Value()
	}
	for pod, node := range room.Nodes {
		if free[node] == nil {
			info := s.nodes[node].info
			most, used := info.GetAllocatable(), info.GetRequested()
			free[node] = &sum{int64(most.GetAllowedPodNumber()) - int64(len(info.GetPods())), most.GetMilliCPU() - used.GetMilliCPU(),
				most.GetMemory() - used.GetMemory(), most.GetEphemeralStorage() - used.GetEphemeralStorage()}
			for _, other := range info.GetPods() {
				// Pods of the group that wait for the others are there already.
				if uid := string(other.GetPod().UID); gone[uid] || pods[uid] != nil {
					add(node, resource.PodRequests(other.GetPod(), resource.PodResourcesOptions{}), 1)
				}
			}
		}
		add(node, pods[pod].requests, -1)
	}
	for node, f := range free {
		if f.pods < 0 || f.cpu < 0 || f.memory < 0 || f.storage < 0 {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
