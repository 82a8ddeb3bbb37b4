package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/gang/room"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// confirmInterval is how often open plans are compared with the cluster. A failed eviction is repeated after it, then later
// each time, up to lastPause.
const (
	confirmInterval = time.Second
	evictTimeout    = 10 * time.Second
	lastPause       = time.Minute
)

func (s *shared) runPlans(ctx context.Context) {
	periodic.Every(ctx, confirmInterval, s.plans.wake, func() {
		s.groups.retryLate()
		s.confirm()
		s.evictAll(ctx)
	})
}

// gone reports whether the pod has ended and its GPUs are free.
func (s *shared) gone(v engine.Victim) bool { return !s.runs(v) && s.engine.AllocatedNode(v.UID) == "" }

func (s *shared) runs(v engine.Victim) bool {
	pod, err := s.pods.Pods(v.Namespace).Get(v.Name)
	return err == nil && string(pod.UID) == v.UID && !convert.Ended(pod)
}

// confirm ends the plans that do not hold in the present state. It retries the pods of those for which all victims have
// ended, and of groups that may plan again.
func (s *shared) confirm() {
	p := s.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, plan := range p.open {
		for _, e := range plan.evict {
			s.extendBegun(e)
		}
	}
	for _, e := range p.unfinished {
		s.extendBegun(e)
	}
	p.unfinished = slices.DeleteFunc(p.unfinished, func(e *eviction) bool { return e.done() || !e.begun })
	snapshot := s.engine.Snapshot()
	state := room.State{GPUs: snapshot.Overlay()}
	for _, e := range p.unfinished {
		state = state.Without(e.unit.Victims...)
	}
	for _, plan := range slices.Clone(p.open) {
		now := s.groups.named(plan.group)
		if !s.valid(plan, now) {
			if now.Started || len(now.Pending) == 0 {
				p.forget(plan.group)
			} else {
				s.log.Info("evictions for a group end: the group has changed, or time is up", "group", plan.group.String())
				p.fail(plan, p.clock().After(plan.until))
				s.groups.retry(now, "")
			}
			continue
		}
		next, ok := s.holds(plan, snapshot, state)
		if !ok {
			s.log.Info("evictions for a group end: the cluster has changed", "group", plan.group.String())
			p.fail(plan, false)
			s.groups.retry(now, "")
			continue
		}
		state = next
		if !plan.retried && !s.waitsFor(plan) {
			plan.retried = s.groups.retry(now, "")
		}
	}
	for _, name := range slices.Concat(keys(p.fruitless), keys(p.refused), keys(p.delays)) {
		now, d := s.groups.named(name), p.delays[name]
		if len(now.Pending) == 0 || now.Started {
			p.forget(name)
		} else if s.bindingEnded(p.fruitless[name]) {
			delete(p.fruitless, name)
			s.groups.retry(now, "")
		} else if !d.until.IsZero() && !p.clock().Before(d.until) {
			if s.groups.retry(now, "") {
				p.delays[name] = delay{last: d.last}
			}
		}
	}
}

func keys[V any](m map[gang.Name]V) []gang.Name { return slices.Collect(maps.Keys(m)) }

// valid is false if the group has changed, or time is up.
func (s *shared) valid(p *plan, now *gang.Group) bool {
	return !s.plans.clock().After(p.until) && now.MustWait() && now.Complete() &&
		!slices.ContainsFunc(p.members, func(pod *v1.Pod) bool {
			return !slices.ContainsFunc(now.Pending, func(n *v1.Pod) bool { return n.UID == pod.UID })
		})
}

// holds reports whether the plan's members still fit, after victims that can be evicted and end. It leaves out evictions
// that have become needless. The state has what is kept for earlier plans.
func (s *shared) holds(p *plan, snapshot *engine.Snapshot, state room.State) (_ room.State, ok bool) {
	var begun, later []*eviction
	for _, e := range p.evict {
		if !e.begun && !s.extend(e) {
			return state, false
		}
		if e.begun {
			begun = append(begun, e)
		} else {
			later = append(later, e)
		}
	}
	for _, v := range p.leaving {
		if !s.gone(v.Victim) && !s.plans.ends(s, v.Victim) {
			return state, false
		}
	}
	hold, stale, err := s.memberHold(p, snapshot)
	if err != nil {
		return state, false
	}
	state = state.Without(p.leaving...).Without(stale...)
	for _, e := range begun {
		state = state.Without(e.unit.Victims...)
	}
	if next, ok := hold.Keep(state); ok {
		p.evict = begun
		return next, true
	}
	for _, e := range later {
		state = state.Without(e.unit.Victims...)
	}
	return hold.Keep(state)
}

// memberHold also requires that the nodes allow the members.
func (s *shared) memberHold(p *plan, snapshot *engine.Snapshot) (_ *room.Hold, stale []room.Victim, err error) {
	for _, pod := range p.members {
		if node := p.nodes[string(pod.UID)]; s.engine.AllocatedNode(string(pod.UID)) == "" && !s.allows(pod, nil)(node) {
			return nil, nil, fmt.Errorf("node %s does not allow pod %s", node, pod.Name)
		}
	}
	return s.hold(p, snapshot, "")
}

// ends reports whether the pod is terminating, or is evicted for an open plan. The caller holds mu.
func (p *plans) ends(s *shared, v engine.Victim) bool {
	pod, err := s.pods.Pods(v.Namespace).Get(v.Name)
	if err != nil || string(pod.UID) != v.UID || pod.DeletionTimestamp != nil || convert.Ended(pod) || s.evictor.Leaving(v.UID) {
		return true
	}
	has := func(e *eviction) bool {
		return slices.ContainsFunc(e.unit.Victims, func(w room.Victim) bool { return w.UID == v.UID })
	}
	return slices.ContainsFunc(p.unfinished, has) ||
		slices.ContainsFunc(p.open, func(o *plan) bool { return slices.ContainsFunc(o.evict, has) })
}

// bindingEnded reports whether there were such pods, and all of them are bound, released or gone.
func (s *shared) bindingEnded(f *fruitless) bool {
	return f != nil && len(f.binding) > 0 && !slices.ContainsFunc(f.binding, func(pod *v1.Pod) bool {
		now, err := s.pods.Pods(pod.Namespace).Get(pod.Name)
		return err == nil && now.UID == pod.UID && s.inFlight(now)
	})
}

// extend adds the pods of a victim group that were bound or got GPUs since the plan; ok is false if the group must not be
// evicted any more.
func (s *shared) extend(e *eviction) (ok bool) {
	if e.unit.Group == "" {
		return true
	}
	e.pods = map[types.UID]bool{}
	for _, pod := range gang.PodsOf(s.groups.pods, e.unit.Group) {
		e.pods[pod.UID] = true
		if runs := s.takesPart(pod); runs && most([]*v1.Pod{pod}) >= e.priority {
			return false
		} else if runs {
			s.addVictim(e, pod)
		}
	}
	return true
}

// extendBegun is extend for an eviction that has begun: pods that were in flight then are bound now, a part of the group.
func (s *shared) extendBegun(e *eviction) {
	if e.unit.Group == "" || !e.begun {
		return
	}
	for _, pod := range gang.PodsOf(s.groups.pods, e.unit.Group) {
		if e.pods[pod.UID] && s.takesPart(pod) {
			s.addVictim(e, pod)
		}
	}
}

// takesPart reports whether the pod is bound or is about to be, and does not end.
func (s *shared) takesPart(pod *v1.Pod) bool {
	return pod.DeletionTimestamp == nil && !convert.Ended(pod) && (pod.Spec.NodeName != "" || s.inFlight(pod))
}

func (s *shared) addVictim(e *eviction, pod *v1.Pod) {
	if slices.ContainsFunc(e.unit.Victims, func(v room.Victim) bool { return v.UID == string(pod.UID) }) {
		return
	}
	node := pod.Spec.NodeName
	if node == "" {
		node = s.engine.AllocatedNode(string(pod.UID))
	}
	e.unit.Victims = append(e.unit.Victims, victimOf(pod, node))
}

// waitsFor reports whether victims of the plan have not ended. The caller holds mu.
func (s *shared) waitsFor(p *plan) bool {
	return slices.ContainsFunc(p.victims(), func(v room.Victim) bool { return !s.gone(v.Victim) })
}

// evictAll evicts the victims of all plans. One that fails is tried again at the next call.
func (s *shared) evictAll(ctx context.Context) {
	s.plans.mu.Lock()
	all := slices.Clone(s.plans.unfinished)
	for _, p := range s.plans.open {
		all = append(all, p.evict...)
	}
	s.plans.mu.Unlock()
	confirmed := time.Now()
	for _, e := range all {
		if ctx.Err() != nil {
			return
		}
		if time.Since(confirmed) > confirmInterval {
			s.confirm()
			confirmed = time.Now()
		}
		s.evictUnit(ctx, e)
	}
}

// evictUnit begins with a unit only while a plan has it and is valid.
func (s *shared) evictUnit(ctx context.Context, e *eviction) {
	term, err := s.takeover().Fence.Term()
	if err != nil {
		return
	}
	s.plans.mu.Lock()
	planned := slices.ContainsFunc(s.plans.open, func(p *plan) bool {
		return slices.Contains(p.evict, e) && s.valid(p, s.groups.named(p.group))
	})
	if time.Now().Before(e.next) || !e.begun && (!planned || !s.extend(e)) {
		s.plans.mu.Unlock()
		return
	}
	e.begun = true
	var left []room.Victim
	for _, v := range e.unit.Victims {
		if !e.evicted[v.UID] {
			left = append(left, v)
		}
	}
	s.plans.mu.Unlock()
	why := fmt.Sprintf("preempted for the pods of group %s, which have a higher priority", e.group)
	begun, failed := len(left) < len(e.unit.Victims), false
	for _, v := range left {
		log := s.log.With("pod", v.Namespace+"/"+v.Name, "for", e.group.String())
		var pod *v1.Pod
		if found, err := s.pods.Pods(v.Namespace).Get(v.Name); err == nil && found.UID == types.UID(v.UID) {
			pod = found
		}
		if pod != nil && pod.DeletionTimestamp == nil && !convert.Ended(pod) {
			call, cancel := context.WithTimeout(ctx, evictTimeout)
			err := kube.Preempt(call, s.client, term, v.Victim, why, kube.Preempted(pod))
			cancel()
			if err != nil {
				log.Info("failed to evict pod", "error", err)
				begun, failed = begun || !kube.Refused(err), true
				continue
			}
			log.Info("evicted pod")
			s.event(pod, v1.EventTypeNormal, "Preempted", why)
		}
		begun = true
		s.plans.mu.Lock()
		e.evicted[v.UID] = true
		s.plans.mu.Unlock()
	}
	s.plans.mu.Lock()
	if e.begun = begun; failed {
		e.pause = min(max(confirmInterval, 2*e.pause), lastPause)
		e.next = time.Now().Add(e.pause)
	}
	s.plans.mu.Unlock()
}
