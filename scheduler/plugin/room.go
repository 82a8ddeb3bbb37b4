package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/scheduler/gang/room"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// Preemption for a group: kube-scheduler's own evicts for one pod, and room for one pod is none for the group. So if a pod
// fits on no node, its group gets a plan (makeRoom): pods to evict, and a node for each of its pods. Another goroutine
// evicts (runPlans). Until the victims have ended, the group's pods are not tried, and other pods leave the room
// (kept). Then each pod gets its node (planned).

// planned sets the cycle's plan, and what the pod must leave to groups. A status rejects a pod that waits for victims.
func (p *Plugin) planned(c *cycle, object *v1.Pod) *fwk.Status {
	if p.plans == nil {
		return nil
	}
	if now := p.groups.of(object); now != nil && now.MustWait() {
		c.group = now
	}
	name, _ := p.groups.name(object)
	c.kept = p.keptFrom(object, name, c.evaluation, c.pod.Priority)
	if c.group == nil {
		return nil
	}
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	plan := p.plans.of(c.group.Name)
	if plan == nil {
		return nil
	}
	if c.planned = plan.nodes[string(object.UID)]; c.planned == "" { // the plan is for the minimum
		c.waits = true
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("group %s: %d other pods are placed first", c.group.Name, len(plan.nodes)))
	}
	left := 0
	for _, v := range plan.victims() {
		if !p.gone(v.Victim) {
			left++
		}
	}
	if c.waits = left > 0; !c.waits {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("group %s: %d pods end to make room for it", c.group.Name, left))
}

// keepsPlan reports whether the plan remains after a pod of the group was rejected on its node: it would take the room of
// another pod of the group, which is placed first then. Or another plugin rejected it, which may not know yet that the
// victims have ended: that passes.
func (p *Plugin) keepsPlan(object *v1.Pod, c *cycle, statuses fwk.NodeToStatusReader) bool {
	status := fwk.NewStatus(fwk.Unschedulable)
	if statuses != nil {
		status = statuses.Get(c.planned)
	}
	verdict := c.evaluation.Verdict(c.planned)
	if status.Plugin() == Name && status.Code() == fwk.Unschedulable && verdict.Fits {
		return true
	}
	p.plans.refuse(c.group.Name, object.UID, []string{c.planned}, statuses)
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	plan := p.plans.of(c.group.Name)
	if plan == nil {
		return false
	}
	if plan.rejected++; status.Plugin() != Name && status.Code() == fwk.Unschedulable && plan.rejected < maxRejected {
		return true
	}
	p.log.Info("evictions for a group end: one of its pods was rejected", "group", plan.group.String(), "pod", object.Name,
		"plugin", status.Plugin(), "reason", status.Message())
	p.plans.fail(plan, true)
	return false
}

// makeRoom makes a plan for the pod's group, and returns the pod's node; "" if there is none.
func (p *Plugin) makeRoom(object *v1.Pod, c *cycle, statuses fwk.NodeToStatusReader) (node string) {
	now := p.groups.of(object) // without pods that were deleted since PreFilter
	if now == nil || !now.MustWait() || !now.Complete() || p.plans.waits(now.Name) {
		return ""
	}
	members := slices.DeleteFunc(slices.Clone(now.Pending), func(pod *v1.Pod) bool {
		return len(pod.Spec.SchedulingGates) > 0 || pod.Spec.SchedulerName != object.Spec.SchedulerName
	})
	if len(members) < now.Minimum {
		c.noRoom = fmt.Errorf("group %s: no pods are evicted: only %d of the %d pods that must be scheduled together have no scheduling gates and this scheduler's name",
			now.Name, len(members), now.Minimum)
		return ""
	}
	if slices.ContainsFunc(members, func(pod *v1.Pod) bool { return !kube.MayPreempt(pod) }) {
		return ""
	}
	if !c.noDomain {
		p.plans.refuse(now.Name, object.UID, c.evaluation.Nodes(), statuses)
	}
	if err, search := p.plans.searches(now.Name, object.UID); !search {
		c.noRoom = err
		return ""
	}
	in, leaving := p.roomFor(now, members)
	found, err := room.Find(in)
	if errors.Is(err, room.ErrNone) && len(members) > now.Minimum {
		members = firstOf(members, now.Minimum)
		in, leaving = p.roomFor(now, members)
		found, err = room.Find(in)
	}
	if err != nil {
		c.noRoom = fmt.Errorf("group %s: %w", now.Name, err)
	}
	p.plans.found(now.Name, c.noRoom, p.binding(now, least(members)))
	if err != nil {
		return ""
	}
	one := &plan{group: now.Name, priority: least(members), members: members, nodes: found.Nodes, until: p.plans.clock().Add(planTime)}
	for _, u := range found.Evict {
		one.evict = append(one.evict, &eviction{unit: u, priority: one.priority, group: now.Name, evicted: map[string]bool{}})
	}
	if one.leaving = needed(in, found, leaving); len(one.evict)+len(one.leaving) == 0 {
		return "" // it fits: a pod waits for something else
	}
	p.plans.add(one)
	p.groups.retry(now, object.UID) // their nodes are nominated now
	p.log.Info("pods are evicted for a group", "group", now.Name.String(), "evicted", len(room.Victims(found.Evict)), "leaving", len(one.leaving))
	return found.Nodes[string(object.UID)]
}

// firstOf are the most important pods, then the oldest ones.
func firstOf(pods []*v1.Pod, n int) []*v1.Pod {
	sorted := slices.SortedFunc(slices.Values(pods), func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sorted[:n]
}

// needed are the leaving pods that the plan can not do without.
func needed(in room.Input, found room.Plan, leaving []room.Victim) []room.Victim {
	hold, err := room.NewHold(in.Engine, in.Snapshot, in.Members, found.Nodes)
	if err != nil {
		return leaving
	}
	if _, ok := hold.Keep(in.State.Without(room.Victims(found.Evict)...).With(leaving...)); ok {
		return nil
	}
	used := map[string]bool{}
	for _, node := range found.Nodes {
		used[node] = true
	}
	return slices.DeleteFunc(slices.Clone(leaving), func(v room.Victim) bool { return !used[v.Node] && v.Namespace != in.Members[0].Pod.Namespace })
}
