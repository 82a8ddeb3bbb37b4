// Package room decides which pods of lower priority to evict so that all pods of a group fit, and where these fit then.
// It changes nothing: package plugin carries a plan out. Its cost is bounded by counts, not by time.
package room

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const (
	// maxNodes are the nodes that are searched, those with the least important victims first.
	maxNodes = 64
	// maxVictims are the pods that are considered for eviction.
	maxVictims = 256
	// MaxMembers is for the pods of a group.
	MaxMembers = 64
	// maxSteps are verdicts of a pod on a node, microseconds each, and looks at scanned nodes.
	maxSteps = 40_000
	scanned  = 32
)

// Host is what a pod needs and a node has beside GPUs: CPU in thousandths, memory, ephemeral storage, pods.
type Host [4]int64

func (h Host) Add(g Host) Host {
	for i := range h {
		h[i] += g[i]
	}
	return h
}

func (h Host) Sub(g Host) Host {
	for i := range h {
		h[i] -= g[i]
	}
	return h
}

// fits: what is not needed may be overcommitted.
func (h Host) fits(free Host) bool {
	for i := range h {
		if h[i] > 0 && h[i] > free[i] {
			return false
		}
	}
	return true
}

// Member is a pod of the group that is not bound.
type Member struct {
	Pod  *scheduler.Pod
	Host Host
	// Allowed reports whether the pod's rules beside GPUs allow the node.
	Allowed func(node string) bool
}

type Victim struct {
	engine.Victim
	Host Host
}

// Unit is a pod, or all bound pods of a group: it is evicted whole.
type Unit struct {
	Group    string // "": a pod without a group
	Victims  []Victim
	Priority int32 // the highest
	// Protected: a budget allows no eviction of one of them.
	Protected bool
}

// Input is a state of the cluster, and a group without room.
type Input struct {
	Engine   *engine.Engine
	Snapshot *engine.Snapshot
	// State is what does not depend on the plan: Snapshot without the group's pods and those that end already, and with
	// what is kept for others.
	State State
	// Members are all pods of the group that are not bound.
	Members []Member
	// Units can be evicted. All have a lower priority than each member; of units that are equally important, those with
	// fewer pods, and then the first ones, are evicted first.
	Units []Unit
	// Domains are sets of nodes of which one gets all members; nil: any nodes.
	Domains [][]string
}

// State is what nodes have free.
type State struct {
	GPUs *engine.Overlay
	Host map[string]Host // nil: unknown, only for members without a Host
}

// Plan is where the members fit after the evictions.
type Plan struct {
	Nodes map[string]string // by UID of the member
	// Evict is minimal: without the eviction of any of them the members don't fit. It can be empty.
	Evict []Unit
}

var (
	// ErrNone: no evictions make room.
	ErrNone = errors.New("no evictions of pods with a lower priority make room for all of its pods")
	// ErrBound: the search was ended, because the group or the cluster is too large for it.
	ErrBound = errors.New("the search for pods to evict was too long")
)

// Find returns the plan with the least important evictions: without violations of budgets if possible, then with the
// lowest highest priority, then with the fewest pods.
func Find(in Input) (Plan, error) {
	if len(in.Members) > MaxMembers {
		return Plan{}, fmt.Errorf("%w: it has more than %d pods", ErrBound, MaxMembers)
	}
	s := &search{Input: in, steps: maxSteps}
	if err := s.evaluate(); err != nil {
		return Plan{}, err
	}
	domains := in.Domains
	if domains == nil {
		domains = [][]string{in.Snapshot.Nodes()}
	}
	var best Plan
	found := false
	for _, nodes := range domains {
		plan, ok := s.within(nodes)
		if s.steps <= 0 {
			return Plan{}, ErrBound
		}
		if ok && (!found || before(plan.Evict, best.Evict)) {
			best, found = plan, true
		}
	}
	if !found {
		return Plan{}, ErrNone
	}
	return best, nil
}

// before compares the most important unit, then the number of pods.
func before(a, b []Unit) bool {
	top := func(units []Unit) (t Unit, pods int) {
		t.Priority = -1 << 31
		for _, u := range units {
			pods += len(u.Victims)
			if important(&u, &t) > 0 {
				t = u
			}
		}
		return t, pods
	}
	ta, na := top(a)
	tb, nb := top(b)
	return cmp.Or(important(&ta, &tb), cmp.Compare(na, nb)) < 0
}

// important compares how bad an eviction is.
func important(a, b *Unit) int {
	if a.Protected != b.Protected {
		if a.Protected {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.Priority, b.Priority)
}

// search has the evaluations of one snapshot.
type search struct {
	Input
	members []member // with GPUs first, the largest first
	nodes   []string
	steps   int
}

type member struct {
	Member
	request    *request.Request // nil: no GPUs
	evaluation *engine.Evaluation
	kind       string // equal: the same verdict on a node
}

func (s *search) evaluate() error {
	for _, m := range s.Members {
		r, err := s.Engine.Request(m.Pod)
		if err != nil {
			return err
		}
		one := member{Member: m, request: r}
		if r != nil {
			one.kind = m.Pod.Namespace + " " + r.Signature
			if one.evaluation = s.Engine.Evaluate(s.Snapshot, m.Pod, r); one.evaluation.Err() != nil {
				return one.evaluation.Err()
			}
		}
		s.members = append(s.members, one)
	}
	slices.SortStableFunc(s.members, largerFirst)
	return nil
}

func largerFirst(a, b member) int {
	memory := func(m *member) int64 {
		if m.request == nil {
			return -1
		}
		return m.request.GPUMemory()
	}
	return cmp.Or(cmp.Compare(memory(&b), memory(&a)), cmp.Compare(b.Host[0], a.Host[0]), cmp.Compare(a.Pod.UID, b.Pod.UID))
}

func (s *search) within(nodes []string) (Plan, bool) {
	units := s.candidates(nodes)
	if at, ok := s.place(s.State); ok {
		return Plan{Nodes: at}, true
	}
	// The fewest classes of importance suffice.
	slices.SortStableFunc(units, func(a, b Unit) int {
		return cmp.Or(important(&a, &b), cmp.Compare(len(a.Victims), len(b.Victims)))
	})
	var ends []int
	for i := range units {
		if i+1 == len(units) || important(&units[i], &units[i+1]) != 0 {
			ends = append(ends, i+1)
		}
	}
	k := sort.Search(len(ends), func(i int) bool {
		_, ok := s.place(s.State.Without(Victims(units[:ends[i]])...))
		return ok
	})
	if k == len(ends) {
		return Plan{}, false
	}
	units = slices.Clone(units[:ends[k]])
	slices.Reverse(units) // the most important ones stay first
	state, victims := s.spare(s.State.Without(Victims(units)...), units)
	for again := true; again; {
		again = false
		for i := 0; i < len(victims); i++ {
			back := state.With(victims[i].Victims...)
			if _, ok := s.place(back); ok {
				state, victims, again = back, slices.Delete(victims, i, i+1), true
				i--
			}
		}
	}
	at, ok := s.place(state)
	return Plan{Nodes: at, Evict: victims}, ok
}

// spare puts back the units that can stay, in their order; all of them are removed from the state.
func (s *search) spare(state State, units []Unit) (State, []Unit) {
	if len(units) == 0 || s.steps <= 0 {
		return state, units
	}
	back := state.With(Victims(units)...)
	if _, ok := s.place(back); ok {
		return back, nil
	}
	if len(units) == 1 {
		return state, units
	}
	state, first := s.spare(state, units[:len(units)/2])
	state, second := s.spare(state, units[len(units)/2:])
	return state, slices.Concat(first, second)
}

// Without is the state after the victims have ended.
func (s State) Without(victims ...Victim) State {
	next := State{s.GPUs, maps.Clone(s.Host)}
	for _, v := range victims {
		next.GPUs = next.GPUs.Without(v.Node, v.UID)
		if next.Host != nil {
			next.Host[v.Node] = next.Host[v.Node].Add(v.Host)
		}
	}
	return next
}

// With takes Without back.
func (s State) With(victims ...Victim) State {
	next := State{s.GPUs, maps.Clone(s.Host)}
	for _, v := range victims {
		next.GPUs = next.GPUs.Restore(v.Node, v.UID)
		if next.Host != nil {
			next.Host[v.Node] = next.Host[v.Node].Sub(v.Host)
		}
	}
	return next
}

// Victims are the pods of all units.
func Victims(units []Unit) (all []Victim) {
	for _, u := range units {
		all = append(all, u.Victims...)
	}
	return all
}

// candidates sets the nodes to search, and returns the units that have pods there, or in a namespace of the group, where
// they use its quotas.
func (s *search) candidates(nodes []string) (units []Unit) {
	on, namespaces := map[string][]Unit{}, map[string]bool{}
	for _, m := range s.members {
		namespaces[m.Pod.Namespace] = true
	}
	for _, u := range s.Units {
		seen := map[string]bool{}
		for _, v := range u.Victims {
			if !seen[v.Node] {
				seen[v.Node] = true
				on[v.Node] = append(on[v.Node], u)
			}
		}
	}
	type ranked struct {
		name string
		rank int // units to evict for one member, by importance
		top  Unit
	}
	var usable []ranked
	for _, node := range nodes {
		here := slices.Clone(on[node])
		slices.SortStableFunc(here, func(a, b Unit) int { return important(&a, &b) })
		if rank, ok := s.rank(node, here); ok {
			r := ranked{name: node, rank: rank}
			if r.top.Priority = -1 << 31; rank > 0 {
				r.top = here[rank-1]
			}
			usable = append(usable, r)
		}
	}
	slices.SortFunc(usable, func(a, b ranked) int {
		return cmp.Or(important(&a.top, &b.top), cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
	})
	s.nodes = s.nodes[:0]
	pods, taken := 0, map[string]bool{}
	take := func(u Unit) {
		if key := u.Victims[0].UID; !taken[key] && pods+len(u.Victims) <= maxVictims {
			taken[key] = true
			pods += len(u.Victims)
		}
	}
	for _, r := range usable[:min(len(usable), maxNodes)] {
		s.nodes = append(s.nodes, r.name)
		for _, u := range on[r.name] {
			take(u)
		}
	}
	for _, u := range s.Units {
		if slices.ContainsFunc(u.Victims, func(v Victim) bool { return namespaces[v.Namespace] }) {
			take(u)
		}
	}
	slices.Sort(s.nodes)
	return slices.DeleteFunc(slices.Clone(s.Units), func(u Unit) bool { return !taken[u.Victims[0].UID] })
}

// rank is how many of the node's units, by importance, have to go for one member to fit there, quotas aside; ok is false if
// all are too few.
func (s *search) rank(node string, units []Unit) (rank int, ok bool) {
	state := State{s.State.GPUs, map[string]Host{node: s.State.Host[node]}}
	for {
		if s.anyFits(state, node) {
			return rank, true
		}
		from := rank
		for rank < len(units) && (rank == from || important(&units[from], &units[rank]) == 0) {
			rank++
		}
		if rank == from || s.steps <= 0 {
			return 0, false
		}
		for _, u := range units[from:rank] {
			for _, v := range u.Victims {
				if v.Node == node {
					state.GPUs = state.GPUs.Without(node, v.UID)
					state.Host[node] = state.Host[node].Add(v.Host)
				}
			}
		}
	}
}

func (s *search) anyFits(state State, node string) bool {
	tried := map[string]bool{}
	for i := range s.members {
		m := &s.members[i]
		if !m.Allowed(node) || !m.Host.fits(state.Host[node]) || tried[m.kind] {
			continue
		}
		if m.request == nil {
			return true
		}
		tried[m.kind] = true
		s.steps--
		if verdict := m.evaluation.On(state.GPUs, node); verdict.Fits || verdict.Reasons()[engine.ResourceQuotaNotFit] > 0 {
			return true
		}
	}
	return false
}
