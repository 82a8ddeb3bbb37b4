package room

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// place places the members one by one, the largest first, each on its best node: not all combinations are tried.
func (s *search) place(state State) (at map[string]string, ok bool) {
	p := placing{search: s, State: State{state.GPUs, maps.Clone(state.Host)}, kinds: map[string][]seat{}}
	at = map[string]string{}
	for i := range s.members {
		m := &s.members[i]
		node := p.put(m)
		if node == "" {
			return nil, false
		}
		at[m.Pod.UID] = node
	}
	return at, true
}

type placing struct {
	*search
	State
	kinds map[string][]seat // by member.kind, in the order of nodes
}

// seat is a node for members of one kind.
type seat struct {
	score int64
	known bool
	full  bool // nothing is released, so it stays so
}

func (p *placing) put(m *member) (node string) {
	seats := p.kinds[m.kind]
	if seats == nil {
		seats = make([]seat, len(p.nodes))
		p.kinds[m.kind] = seats
	}
	for {
		best := p.best(m, seats)
		if best < 0 {
			return ""
		}
		node = p.nodes[best]
		if m.request != nil {
			next, ok := m.evaluation.Put(p.GPUs, node, m.request)
			if !ok { // each member leaves less of a quota
				seats[best].full = true
				continue
			}
			p.GPUs = next
		}
		p.Host[node] = p.Host[node].Sub(m.Host)
		for _, others := range p.kinds {
			others[best].known = false
		}
		return node
	}
}

// best is the position of the node with the highest score, the first among equals; -1: none fits.
func (p *placing) best(m *member, seats []seat) int {
	best := -1
	if p.steps -= 1 + len(p.nodes)/scanned; p.steps <= 0 {
		return -1
	}
	for i, node := range p.nodes {
		s := &seats[i]
		if s.full || !m.Allowed(node) || !m.Host.fits(p.Host[node]) {
			continue
		}
		if !s.known && m.request != nil {
			if p.steps--; p.steps <= 0 {
				return -1
			}
			verdict := m.evaluation.On(p.GPUs, node)
			s.score, s.full, s.known = verdict.Score, !verdict.Fits, true
		}
		if !s.full && (best < 0 || s.score > seats[best].score) {
			best = i
		}
	}
	return best
}

// Hold is the room of a plan for members.
type Hold struct {
	members []member
	nodes   map[string]string
}

// NewHold is for some or all members of a plan.
func NewHold(e *engine.Engine, s *engine.Snapshot, members []Member, nodes map[string]string) (*Hold, error) {
	h := &search{Input: Input{Engine: e, Snapshot: s, Members: members}}
	if err := h.evaluate(); err != nil {
		return nil, err
	}
	return &Hold{h.members, nodes}, nil
}

// On is the part of the hold on the node.
func (h *Hold) On(node string) *Hold {
	here := slices.DeleteFunc(slices.Clone(h.members), func(m member) bool { return h.nodes[m.Pod.UID] != node })
	return &Hold{here, h.nodes}
}

// Keep places the members in the state; ok is false if one of them does not fit on its node any more.
func (h *Hold) Keep(state State) (_ State, ok bool) {
	next := State{state.GPUs, maps.Clone(state.Host)}
	for i := range h.members {
		m := &h.members[i]
		node := h.nodes[m.Pod.UID]
		if node == "" || !m.Allowed(node) || !m.Host.fits(next.Host[node]) {
			return state, false
		}
		if m.request != nil {
			if next.GPUs, ok = m.evaluation.Put(next.GPUs, node, m.request); !ok {
				return state, false
			}
		}
		if next.Host != nil {
			next.Host[node] = next.Host[node].Sub(m.Host)
		}
	}
	return next, true
}
