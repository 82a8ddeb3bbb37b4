package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Stats are counts since the engine was made, and the state's size now.
type Stats struct {
	// Reserved is how many reservations were made, Repeated how many were asked for again,
	// Refused how many found no room on the newest state (each a double booking that was
	// not made, where Evaluate had seen room), Expired how many were never confirmed.
	Reserved, Repeated, Refused, Expired uint64
	// Nodes and Cards are registered; Pods hold something; Reservations of them are not bound.
	Nodes, Cards, Pods, Reservations int
	// Problems is the length of the list of that name.
	Problems int
}

// Stats is for metrics. It costs a walk over nodes and pods.
func (e *Engine) Stats() Stats {
	s := Stats{Reserved: e.stats.reserved.Load(), Repeated: e.stats.again.Load(), Refused: e.stats.refused.Load(), Expired: e.stats.expired.Load()}
	e.Snapshot().each(func(n *node) {
		if n.registered {
			s.Nodes++
			s.Cards += len(n.cards.total)
		}
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.pods {
		if p.held != nil {
			s.Pods++
			if p.phase != bound {
				s.Reservations++
			}
		}
	}
	s.Problems = len(e.problems())
	return s
}

// Problem is something that somebody has to look at.
type Problem struct {
	Node string `json:"node,omitempty"`
	// PodUID, Pod (namespace/name) are of a problem of a pod.
	PodUID string `json:"podUID,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Text   string `json:"text"`
}

// Problems are annotations that can't be read or must not be believed, and cards of which
// more is taken than there is (by other schedulers, or because the card has shrunk).
func (e *Engine) Problems() []Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problems()
}

func (e *Engine) problems() []Problem {
	var all []Problem
	e.newest.Load().each(func(n *node) {
		if n.problem != "" {
			all = append(all, Problem{Node: n.name, Text: n.problem})
		}
		for i, used := range n.used {
			if total := n.cards.total[i]; used.MemoryMiB > total.MemoryMiB || used.Cores > total.Cores || used.Slots > total.Slots {
				all = append(all, Problem{Node: n.name, Text: fmt.Sprintf(
					"card %s: more is taken than there is: %d of %d MiB, %d of %d%% of cores, %d of %d slots: end pods there, or see what else gives out its cards",
					n.cards.inventory.Cards[i].UUID, used.MemoryMiB, total.MemoryMiB, used.Cores, total.Cores, used.Slots, total.Slots)})
			}
		}
	})
	for _, p := range e.pods {
		if p.problem != "" {
			all = append(all, Problem{PodUID: p.uid, Pod: p.namespace + "/" + p.name, Text: p.problem})
		}
	}
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Text, b.Text))
	})
	return all
}

// State is all that the engine knows, for people and for /debug/state: sorted, and the same for the same state.
type State struct {
	Nodes    []NodeState `json:"nodes"`
	Problems []Problem   `json:"problems,omitempty"`
}

// NodeState is a node, its cards and who has them.
type NodeState struct {
	Name       string      `json:"name"`
	Registered bool        `json:"registered"`
	Cards      []CardState `json:"cards,omitempty"`
	Pods       []PodState  `json:"pods,omitempty"`
}

// CardState is a card and what is taken of it.
type CardState struct {
	scheduler.Card
	Used scheduler.Use `json:"used"`
}

// PodState is what a pod holds.
type PodState struct {
	UID        string          `json:"uid"`
	Pod        string          `json:"pod"` // namespace/name
	Phase      string          `json:"phase"`
	Owner      string          `json:"owner,omitempty"`
	Expires    *time.Time      `json:"expires,omitempty"` // unless it is bound by then
	Containers [][]grant.Share `json:"containers"`
}

// State describes a node, or with an empty name all.
func (e *Engine) State(name string) State {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	s := State{Problems: e.problems()}
	e.newest.Load().each(func(n *node) {
		if name == "" || name == n.name {
			s.Nodes = append(s.Nodes, e.describe(n))
		}
	})
	slices.SortFunc(s.Nodes, func(a, b NodeState) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

func (e *Engine) describe(n *node) NodeState {
	s := NodeState{Name: n.name, Registered: n.registered}
	for i, card := range n.cards.inventory.Cards {
		s.Cards = append(s.Cards, CardState{card, n.used[i]})
	}
	for _, h := range n.pods {
		p := PodState{UID: h.uid, Pod: h.namespace + "/" + h.name, Containers: h.placement.Containers, Phase: "bound"}
		if known := e.pods[h.uid]; known.phase != bound {
			expiry := known.expiry
			p.Phase, p.Owner, p.Expires = [...]string{reserved: "reserved", written: "written"}[known.phase], known.owner, &expiry
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

// each calls f for all nodes, in no order that means anything.
func (s *Snapshot) each(f func(n *node)) {
	for _, c := range s.table {
		for i := 0; c != nil && i < chunkSize; i++ {
			if c.nodes[i] != nil {
				f(c.nodes[i])
			}
		}
	}
}
