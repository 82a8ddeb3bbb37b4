package plugin

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/gang/room"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// least is the lowest priority of the pods.
func least(pods []*v1.Pod) int32 {
	lowest := ptr.Deref(pods[0].Spec.Priority, 0)
	for _, p := range pods {
		lowest = min(lowest, ptr.Deref(p.Spec.Priority, 0))
	}
	return lowest
}

func hostOf(pod *v1.Pod) room.Host {
	r := resource.PodRequests(pod, resource.PodResourcesOptions{})
	return room.Host{r.Cpu().MilliValue(), r.Memory().Value(), r.StorageEphemeral().Value(), 1}
}

func victimOf(pod *v1.Pod, node string) room.Victim {
	return room.Victim{Victim: engine.Victim{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Node: node}, Host: hostOf(pod)}
}

// freeHosts is only for a scheduling cycle.
func (s *informerSync) freeHosts() map[string]room.Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]room.Host, len(s.nodes))
	for name, seen := range s.nodes {
		has, used := seen.info.GetAllocatable(), seen.info.GetRequested()
		all[name] = room.Host{has.GetMilliCPU() - used.GetMilliCPU(), has.GetMemory() - used.GetMemory(),
			has.GetEphemeralStorage() - used.GetEphemeralStorage(), int64(has.GetAllowedPodNumber() - len(seen.info.GetPods()))}
	}
	return all
}

// allows returns whether the pod's own rules allow a node, as far as they don't depend on other pods. refused are nodes
// that other plugins refused.
func (s *shared) allows(pod *v1.Pod, refused map[string]bool) func(name string) bool {
	required, known := nodeaffinity.GetRequiredNodeAffinity(pod), map[string]bool{}
	return func(name string) bool {
		allowed, ok := known[name]
		if !ok {
			if node, err := s.nodes.Get(name); err == nil && !refused[name] && !node.Spec.Unschedulable {
				match, err := required.Match(node)
				_, tainted := findTaint(node, pod, hard)
				allowed = err == nil && match && !tainted
			}
			known[name] = allowed
		}
		return allowed
	}
}

func hard(t *v1.Taint) bool { return !soft(t) }

// roomFor is what members of a group without room need, and the pods that end already: their room counts as free.
func (p *Plugin) roomFor(now *gang.Group, members []*v1.Pod) (in room.Input, leaving []room.Victim) {
	own, priority := map[string]bool{}, least(members)
	var placed []room.Victim // they wait for the others, or are being released, also after the snapshot
	for _, pod := range now.Pending {
		own[string(pod.UID)] = true
		if at := p.engine.AllocatedNode(string(pod.UID)); at != "" {
			placed = append(placed, victimOf(pod, at))
		}
	}
	s := p.engine.Snapshot()
	in = room.Input{Engine: p.engine, Snapshot: s, State: room.State{GPUs: s.Overlay(), Host: p.informerSync.freeHosts()}.Without(placed...)}
	for _, pod := range members {
		in.Members = append(in.Members, room.Member{Pod: convert.Pod(pod), Host: hostOf(pod), Allowed: p.allows(pod, p.plans.refusedOf(now.Name, pod.UID))})
	}
	all, _ := p.pods.List(labels.Everything()) // listers of caches return no errors
	planned, holds, stale := p.before(now.Name, priority, s)
	var bound, taken, nominated []*v1.Pod
	for _, pod := range all {
		switch {
		case pod.Spec.NodeName == "" && pod.Status.NominatedNodeName != "" && !own[string(pod.UID)] && ptr.Deref(pod.Spec.Priority, 0) >= priority:
			nominated = append(nominated, pod)
		case pod.Spec.NodeName == "" || convert.Ended(pod):
		case pod.DeletionTimestamp != nil || planned[string(pod.UID)] || p.evictor.Leaving(string(pod.UID)):
			leaving = append(leaving, victimOf(pod, pod.Spec.NodeName))
			if planned[string(pod.UID)] {
				taken = append(taken, pod)
			}
		default:
			bound = append(bound, pod)
		}
	}
	in.State = in.State.Without(leaving...).Without(stale...)
	for _, hold := range holds {
		in.State, _ = hold.Keep(in.State)
	}
	for _, pod := range nominated {
		other := convert.Pod(pod)
		if r, err := p.engine.Request(other); err == nil {
			in.State.GPUs = p.engine.With(in.State.GPUs, pod.Status.NominatedNodeName, other, r)
		}
	}
	in.Units = p.units(bound, taken, priority)
	if label := now.Topology(); label != "" {
		in.Domains = p.domainsOf(label, s)
	}
	return in, leaving
}

// binding are pods of other groups or of none that have GPUs, are not bound yet, and have a lower priority.
func (s *shared) binding(group *gang.Group, priority int32) []*v1.Pod {
	all, _ := s.pods.List(labels.Everything())
	return slices.DeleteFunc(all, func(pod *v1.Pod) bool {
		name, _ := s.groups.name(pod)
		return name == group.Name || !s.inFlight(pod) || ptr.Deref(pod.Spec.Priority, 0) >= priority
	})
}

// inFlight reports whether the pod has GPUs and is not bound yet.
func (s *shared) inFlight(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && !convert.Ended(pod) && s.engine.AllocatedNode(string(pod.UID)) != ""
}

// domainsOf are the nodes by their value of the label.
func (s *shared) domainsOf(label string, state *engine.Snapshot) [][]string {
	byValue := map[string][]string{}
	for _, name := range state.Nodes() {
		if node, err := s.nodes.Get(name); err == nil && node.Labels[label] != "" {
			byValue[node.Labels[label]] = append(byValue[node.Labels[label]], name)
		}
	}
	all := [][]string{} // not nil: then all nodes would be one
	for _, value := range slices.Sorted(maps.Keys(byValue)) {
		all = append(all, byValue[value])
	}
	return all
}

// units are the bound pods that can be evicted for a pod of that priority: single ones, and groups of which no pod has as
// high a priority. The newest come first. taken are the victims of other plans: budgets may not count them yet.
func (s *shared) units(bound, taken []*v1.Pod, priority int32) (units []room.Unit) {
	type unit struct {
		name gang.Name
		pods []*v1.Pod
		gpus bool
	}
	groups, all := map[gang.Name]*unit{}, []*unit{} // nil: its pods are evicted one by one
	for _, pod := range bound {
		u := &unit{}
		name, in := gang.Of(pod)
		if _, known := groups[name]; in && !known {
			groups[name] = nil
			if s.groups.evictedWhole(name) {
				groups[name] = &unit{name: name}
				all = append(all, groups[name])
			}
		}
		if in && groups[name] != nil {
			u = groups[name]
		} else {
			all = append(all, u)
		}
		u.pods, u.gpus = append(u.pods, pod), u.gpus || s.engine.AllocatedNode(string(pod.UID)) != ""
	}
	all = slices.DeleteFunc(all, func(u *unit) bool { return !u.gpus || most(u.pods) >= priority })
	var candidates []*v1.Pod
	for _, u := range all {
		slices.SortFunc(u.pods, leastImportantFirst)
		candidates = append(candidates, u.pods...)
	}
	slices.SortFunc(all, func(a, b *unit) int { return leastImportantFirst(a.pods[0], b.pods[0]) })
	slices.SortFunc(candidates, leastImportantFirst) // they use what budgets allow
	budgets, _ := s.budgets.List(labels.Everything())
	var chosen []string
	for _, pod := range taken {
		chosen = append(chosen, string(pod.UID))
	}
	_, free := kube.ByBudget(slices.Concat(taken, candidates), chosen, budgets)
	unprotected := map[string]bool{}
	for _, uid := range free {
		unprotected[uid] = true
	}
	for _, u := range all {
		one := room.Unit{Priority: most(u.pods)}
		if u.name != (gang.Name{}) {
			one.Group = u.name.String()
		}
		for _, pod := range u.pods {
			one.Victims = append(one.Victims, victimOf(pod, pod.Spec.NodeName))
			one.Protected = one.Protected || !unprotected[string(pod.UID)]
		}
		units = append(units, one)
	}
	return units
}

func most(pods []*v1.Pod) int32 {
	highest := ptr.Deref(pods[0].Spec.Priority, 0)
	for _, p := range pods {
		highest = max(highest, ptr.Deref(p.Spec.Priority, 0))
	}
	return highest
}

func leastImportantFirst(a, b *v1.Pod) int {
	return cmp.Or(cmp.Compare(ptr.Deref(a.Spec.Priority, 0), ptr.Deref(b.Spec.Priority, 0)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// evictedWhole reports whether a part of the group is worth nothing.
func (g *groups) evictedWhole(name gang.Name) bool {
	of := gang.New(name, gang.Pods(g.pods, name), g.minimums)
	return of.Minimum > 1 || of.Err != nil
}
