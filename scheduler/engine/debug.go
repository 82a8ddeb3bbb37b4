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
	// Nodes and GPUs are registered; Pods hold something; Reservations of them are not bound.
	Nodes, GPUs, Pods, Reservations int
	// Problems is the length of the list of that name.
	Problems int
}

// Stats is for metrics. It costs a look at the pods that have problems.
func (e *Engine) Stats() Stats {
	now := e.copyState()
	return Stats{
		Reserved: e.stats.reserved.Load(), Repeated: e.stats.repeated.Load(), Refused: e.stats.refused.Load(), Expired: e.stats.expired.Load(),
		Nodes: now.snapshot.totals.nodes, GPUs: now.snapshot.totals.gpus, Pods: now.allocated, Reservations: len(now.reservations),
		Problems: now.snapshot.totals.problems + len(now.podProblems()),
	}
}

// look is a snapshot and what belongs to it of the pods: what is to be told is made of it
// without the engine's lock.
type stateCopy struct {
	snapshot     *Snapshot
	allocated    int
	reservations map[string]pod // by UID
	problemPods  []pod
}

func (e *Engine) copyState() *stateCopy {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	l := &stateCopy{snapshot: e.newest.Load(), allocated: e.allocated, reservations: make(map[string]pod, len(e.reservations)), problemPods: make([]pod, 0, len(e.problemPods))}
	for _, p := range e.reservations {
		l.reservations[p.uid] = *p
	}
	for _, p := range e.problemPods {
		l.problemPods = append(l.problemPods, *p)
	}
	return l
}

// Problem is something that somebody has to look at.
type Problem struct {
	Node string `json:"node,omitempty"`
	// PodUID, Pod (namespace/name) are of a problem of a pod.
	PodUID string `json:"podUID,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Text   string `json:"text"`
}

// Problems are annotations that can't be read or must not be believed, and GPUs of which
// more is taken than there is (by other schedulers, or because the GPU has shrunk).
func (e *Engine) Problems() []Problem { return e.copyState().problems() }

func (l *stateCopy) problems() []Problem {
	all := l.podProblems()
	l.snapshot.each(func(n *node) { n.problems(&all) })
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Text, b.Text))
	})
	return all
}

// podProblems are those of pods. A pod that nobody gave GPUs is one only where there are
// GPUs of ours: elsewhere it has those of another system.
func (l *stateCopy) podProblems() (all []Problem) {
	for i := range l.problemPods {
		p := &l.problemPods[i]
		text := p.problem
		if n := l.snapshot.node(p.unserved); text == "" && n != nil && len(n.gpus.total) > 0 {
			text = fmt.Sprintf("it is on node %s, asks for GPUs and was given none, so that nothing is counted: another scheduler or spec.nodeName has put it there; delete it, so that it is scheduled again", p.unserved)
		}
		if text != "" {
			all = append(all, Problem{PodUID: p.uid, Pod: p.namespace + "/" + p.name, Text: text})
		}
	}
	return all
}

// troubles is how many problems the node has; they are appended to all, unless it is nil.
func (n *node) problems(all *[]Problem) (count int) {
	if n.problem != "" {
		count++
		if all != nil {
			*all = append(*all, Problem{Node: n.name, Text: n.problem})
		}
	}
	for i, used := range n.used {
		total := n.gpus.total[i]
		if used.MemoryMiB <= total.MemoryMiB && used.Cores <= total.Cores && used.Slots <= total.Slots {
			continue
		}
		count++
		if all != nil {
			*all = append(*all, Problem{Node: n.name, Text: fmt.Sprintf(
				"GPU %s: more is taken than there is: %d of %d MiB, %d of %d%% of cores, %d of %d slots: end pods there, or see what else gives out its GPUs",
				n.gpus.inventory.GPUs[i].UUID, used.MemoryMiB, total.MemoryMiB, used.Cores, total.Cores, used.Slots, total.Slots)})
		}
	}
	return count
}

// State is all that the engine knows, for people and for /debug/state: sorted, and the same for the same state.
type State struct {
	Nodes    []NodeState `json:"nodes"`
	Problems []Problem   `json:"problems,omitempty"`
}

// NodeState is a node, its GPUs and who has them.
type NodeState struct {
	Name       string     `json:"name"`
	Registered bool       `json:"registered"`
	GPUs       []GPUState `json:"gpus,omitempty"`
	Pods       []PodState `json:"pods,omitempty"`
}

// GPUState is a GPU and what is taken of it.
type GPUState struct {
	scheduler.GPU
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
	now := e.copyState()
	s := State{Problems: now.problems()}
	if n := now.snapshot.node(name); n != nil {
		s.Nodes = []NodeState{now.describe(n)}
	}
	if name == "" {
		now.snapshot.each(func(n *node) { s.Nodes = append(s.Nodes, now.describe(n)) })
	}
	slices.SortFunc(s.Nodes, func(a, b NodeState) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

func (l *stateCopy) describe(n *node) NodeState {
	s := NodeState{Name: n.name, Registered: n.registered}
	for i, gpu := range n.gpus.inventory.GPUs {
		s.GPUs = append(s.GPUs, GPUState{gpu, n.used[i]})
	}
	for _, h := range n.pods {
		p := PodState{UID: h.uid, Pod: h.namespace + "/" + h.name, Containers: h.placement.Containers, Phase: "bound"}
		if known, ok := l.reservations[h.uid]; ok {
			p.Phase, p.Owner, p.Expires = "reserved", known.owner, &known.expiry
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

// GPUs calls f for each registered GPU of the snapshot with what is taken of it, in no
// order that means anything.
func (s *Snapshot) GPUs(f func(node string, gpu *scheduler.GPU, used scheduler.Use)) {
	s.each(func(n *node) {
		for i := range n.gpus.inventory.GPUs {
			f(n.name, &n.gpus.inventory.GPUs[i], n.used[i])
		}
	})
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
