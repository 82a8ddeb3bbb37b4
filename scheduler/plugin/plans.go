package plugin

import (
	"cmp"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/gang/room"
)

const (
	// planTime is how long a plan keeps its room.
	planTime = 10 * time.Minute
	// After a plan that failed the next one waits, longer each time: see fail.
	firstDelay = 30 * time.Second
	lastDelay  = 10 * time.Minute
	// maxRejected is how often other plugins can reject pods of a plan on their nodes.
	maxRejected = 16
)

// plans are the groups for which pods are evicted. The room of a plan is kept for its group until the group is placed.
type plans struct {
	clock func() time.Time
	wake  chan struct{}

	mu sync.Mutex
	// open have distinct groups. Those with the highest priority come first, then the older ones.
	open []*plan
	// unfinished are evictions of plans that ended: the rest of a group of which pods were evicted.
	unfinished []*eviction
	delays     map[gang.Name]delay
	// blocked pods wait for room that is kept for groups.
	blocked map[types.UID]queuedPod
	// fruitless searches for evictions, by the pods of the group that failed since: see searches.
	fruitless map[gang.Name]*fruitless
	// refused are nodes that other plugins refused for pods of a group.
	refused map[gang.Name]map[types.UID]map[string]bool
}

type plan struct {
	group    gang.Name
	priority int32
	members  []*v1.Pod
	nodes    map[string]string // by UID
	evict    []*eviction
	// leaving are other pods that end; the plan needs their room.
	leaving []room.Victim
	until   time.Time
	retried bool // its members were, after all victims ended
	// rejected counts how often other plugins rejected one of its pods on its node.
	rejected int
}

type eviction struct {
	unit     room.Unit
	priority int32 // of the group for which it is
	group    gang.Name
	begun    bool
	evicted  map[string]bool // by UID
	// pods of the victim group, by UID, before its eviction began. Later ones take the place of the evicted ones.
	pods map[types.UID]bool
	// After a failure it is tried again at next; pause grows.
	next  time.Time
	pause time.Duration
}

type fruitless struct {
	err    error
	failed map[types.UID]bool
	// binding pods have a lower priority. They can be evicted when they are bound, which is no event for kube-scheduler.
	binding []*v1.Pod
}

type delay struct {
	until time.Time
	last  time.Duration
}

func newPlans() *plans {
	return &plans{clock: time.Now, wake: make(chan struct{}, 1), delays: map[gang.Name]delay{}, fruitless: map[gang.Name]*fruitless{},
		blocked: map[types.UID]queuedPod{}, refused: map[gang.Name]map[types.UID]map[string]bool{}}
}

// victims are all pods that have to end.
func (p *plan) victims() []room.Victim {
	all := slices.Clone(p.leaving)
	for _, e := range p.evict {
		all = append(all, e.unit.Victims...)
	}
	return all
}

// begun reports whether pods were evicted for the plan.
func (p *plan) begun() bool {
	return slices.ContainsFunc(p.evict, func(e *eviction) bool { return e.begun })
}

func (s *plans) of(name gang.Name) *plan {
	for _, p := range s.open {
		if p.group == name {
			return p
		}
	}
	return nil
}

// add takes the place of an earlier plan for the group.
func (s *plans) add(p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.of(p.group))
	s.open = append(s.open, p)
	slices.SortStableFunc(s.open, func(a, b *plan) int { return cmp.Compare(b.priority, a.priority) })
	periodic.Wake(s.wake)
}

// remove ends a plan and releases its room. A group is evicted whole, if the eviction has begun. The caller holds mu.
func (s *plans) remove(p *plan) {
	if p == nil {
		return
	}
	s.open = slices.DeleteFunc(s.open, func(o *plan) bool { return o == p })
	for _, e := range p.evict {
		if e.begun && !e.done() {
			s.unfinished = append(s.unfinished, e)
		}
	}
	for _, b := range s.blocked {
		activate(b.handle, b.pod)
	}
	clear(s.blocked)
}

// fail ends a plan without which the group is not placed. The group waits for the next one if pods were evicted, or if delayed.
// The caller holds mu.
func (s *plans) fail(p *plan, delayed bool) {
	if delayed || p.begun() {
		pause := min(max(firstDelay, 2*s.delays[p.group].last), lastDelay)
		s.delays[p.group] = delay{s.clock().Add(pause), pause}
	}
	s.remove(p)
}

// forget ends what is known of a group that is placed or gone. The caller holds mu.
func (s *plans) forget(name gang.Name) {
	s.remove(s.of(name))
	delete(s.delays, name)
	delete(s.refused, name)
	delete(s.fruitless, name)
}

// searches reports whether evictions are searched after the pod failed: the search takes time, and finds nothing again
// until one of the group's pods is retried. err is why the last search found none.
func (s *plans) searches(name gang.Name, pod types.UID) (err error, search bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.fruitless[name]
	if last == nil || last.failed[pod] {
		s.fruitless[name] = &fruitless{failed: map[types.UID]bool{pod: true}}
		return nil, true
	}
	last.failed[pod] = true
	return last.err, false
}

func (s *plans) found(name gang.Name, err error, binding []*v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.fruitless[name]; err != nil && last != nil {
		last.err, last.binding = err, binding
		delete(s.refused, name) // the next search knows the newest refusals
	} else {
		delete(s.fruitless, name)
	}
}

func (e *eviction) done() bool {
	return !slices.ContainsFunc(e.unit.Victims, func(v room.Victim) bool { return !e.evicted[v.UID] })
}

// waits reports whether the group must wait for its next plan.
func (s *plans) waits(name gang.Name) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock().Before(s.delays[name].until)
}

// block retries the pod when a plan ends.
func (s *plans) block(pod *v1.Pod, handle fwk.Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		activate(handle, pod)
		return
	}
	s.blocked[pod.UID] = queuedPod{pod, handle}
}

func (s *plans) unblock(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.blocked, pod.UID)
}

// refuse adds the nodes that other plugins refused for good.
func (s *plans) refuse(name gang.Name, pod types.UID, nodes []string, statuses fwk.NodeToStatusReader) {
	if statuses == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range nodes {
		status := statuses.Get(node)
		if status.Code() != fwk.UnschedulableAndUnresolvable || status.Plugin() == "" || status.Plugin() == Name {
			continue
		}
		if s.refused[name] == nil {
			s.refused[name] = map[types.UID]map[string]bool{}
		}
		if s.refused[name][pod] == nil {
			s.refused[name][pod] = map[string]bool{}
		}
		s.refused[name][pod][node] = true
	}
}

// refusedOf returns a copy.
func (s *plans) refusedOf(name gang.Name, pod types.UID) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for node := range s.refused[name][pod] {
		all[node] = true
	}
	return all
}

// before returns the pods that are evicted for other groups, the room that is kept for those that come before a group of
// that priority, and what their pods have elsewhere.
func (s *shared) before(name gang.Name, priority int32, snapshot *engine.Snapshot) (victims map[string]bool, holds []*room.Hold, stale []room.Victim) {
	s.plans.mu.Lock()
	defer s.plans.mu.Unlock()
	victims = map[string]bool{}
	add := func(e *eviction) {
		for _, v := range e.unit.Victims {
			victims[v.UID] = true
		}
	}
	for _, e := range s.plans.unfinished {
		add(e)
	}
	for _, p := range s.plans.open {
		for _, e := range p.evict {
			if e.begun || p.priority >= priority {
				add(e)
			}
		}
		if p.group != name && p.priority >= priority {
			if hold, elsewhere, err := s.hold(p, snapshot, ""); err == nil {
				holds, stale = append(holds, hold), append(stale, elsewhere...)
			}
		}
	}
	return victims, holds, stale
}

// hold is the room for the members that the plan has not placed yet, except one. stale is what they have from before the
// plan and are about to release. The caller holds mu.
func (s *shared) hold(p *plan, snapshot *engine.Snapshot, except types.UID) (_ *room.Hold, stale []room.Victim, err error) {
	var members []room.Member
	waits := s.waitsFor(p)
	for _, pod := range p.members {
		uid := string(pod.UID)
		at := s.engine.AllocatedNode(uid)
		if at != "" && !waits && at == p.nodes[uid] {
			continue
		}
		if pod.UID == except {
			continue
		}
		if at != "" {
			stale = append(stale, room.Victim{Victim: engine.Victim{UID: uid, Node: at}})
		}
		members = append(members, room.Member{Pod: convert.Pod(pod), Allowed: anywhere})
	}
	hold, err := room.NewHold(s.engine, snapshot, members, p.nodes)
	return hold, stale, err
}

func anywhere(string) bool { return true }

// kept is the room that a pod must leave to groups, in one cycle.
type kept struct {
	nodes    map[string]bool
	limited  bool // quotas of the pod's namespace count on any node
	victims  []room.Victim
	holds    []*room.Hold
	evaluate *engine.Evaluation
}

// keptFrom returns nil if the pod need not leave any. A plan's own pods leave the room of the others.
func (s *shared) keptFrom(pod *v1.Pod, group gang.Name, v *engine.Evaluation, priority int32) *kept {
	s.plans.mu.Lock()
	defer s.plans.mu.Unlock()
	var k *kept
	for _, p := range s.plans.open {
		if p.group != group && p.priority < priority {
			continue
		}
		hold, stale, err := s.hold(p, v.Snapshot(), pod.UID)
		if err != nil {
			continue
		}
		if k == nil {
			k = &kept{nodes: map[string]bool{}, evaluate: v}
		}
		k.holds, k.victims = append(k.holds, hold), slices.Concat(k.victims, p.victims(), stale)
		k.limited = k.limited || p.group.Namespace == pod.Namespace && v.Limited()
		for _, node := range p.nodes {
			k.nodes[node] = true
		}
	}
	return k
}

// leaves reports whether the pod leaves the room that is kept, if it is placed on the node.
func (k *kept) leaves(c *cycle, node string) bool {
	if k == nil || !k.nodes[node] && !k.limited {
		return true
	}
	o, ok := k.evaluate.Put(c.start(), node, c.request)
	if !ok {
		return true // it does not fit at all
	}
	victims := k.victims
	if !k.limited {
		victims = slices.DeleteFunc(slices.Clone(victims), func(v room.Victim) bool { return v.Node != node })
	}
	state := room.State{GPUs: o}.Without(victims...)
	for _, hold := range k.holds {
		if !k.limited {
			hold = hold.On(node)
		}
		if state, ok = hold.Keep(state); !ok {
			return false
		}
	}
	return true
}
