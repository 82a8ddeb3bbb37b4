package engine

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Stats are counters since start and current sizes.
type Stats struct {
	// Refused reservations are prevented double reservations: they fitted by Evaluate, but not on the newest
	// state. Expired ones were never confirmed.
	Reserved, Repeated, Refused, Expired uint64
	// Nodes and GPUs are registered; Pods have an allocation; Reservations are not bound yet.
	Nodes, GPUs, Pods, Reservations int
	Problems                        int
}

func (e *Engine) Stats() Stats {
	now := e.copyState()
	s := Stats{
		Reserved: e.stats.reserved.Load(), Repeated: e.stats.repeated.Load(),
		Refused: e.stats.refused.Load(), Expired: e.stats.expired.Load(),
		Reservations: len(now.reservations), Problems: len(now.problems()),
	}
	now.snapshot.each(func(n *node) {
		if n.registered {
			s.Nodes++
		}
		s.GPUs += len(n.gpus.total)
		s.Pods += len(n.pods)
	})
	return s
}

// stateCopy is used without the lock.
type stateCopy struct {
	snapshot     *Snapshot
	reservations map[string]pod // by UID
	problemPods  []pod
}

func (e *Engine) copyState() *stateCopy {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	l := &stateCopy{snapshot: e.newest.Load(), reservations: make(map[string]pod, len(e.reservations)),
		problemPods: make([]pod, 0, len(e.problemPods))}
	for _, p := range e.reservations {
		l.reservations[p.uid] = *p
	}
	for _, p := range e.problemPods {
		l.problemPods = append(l.problemPods, *p)
	}
	return l
}

// Problem needs an operator's attention.
type Problem struct {
	Node string `json:"node,omitempty"`
	// Of a pod's problem; Pod is namespace/name.
	PodUID string `json:"podUID,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Text   string `json:"text"`
}

// Problems returns invalid annotations and overcommitted GPUs.
func (e *Engine) Problems() []Problem { return e.copyState().problems() }

func (l *stateCopy) problems() []Problem {
	all := l.podProblems()
	l.snapshot.each(func(n *node) { all = append(all, n.problems()...) })
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Text, b.Text))
	})
	return all
}

// podProblems ignores unserved pods on nodes without GPUs of ours: another system manages those.
func (l *stateCopy) podProblems() (all []Problem) {
	for i := range l.problemPods {
		p := &l.problemPods[i]
		text := p.problem
		if n := l.snapshot.node(p.unserved); text == "" && n != nil && len(n.gpus.total) > 0 {
			text = fmt.Sprintf("it is on node %s, requests GPUs and was granted none, so that none are counted: %s", p.unserved, unservedHint)
		}
		if text != "" {
			all = append(all, Problem{PodUID: p.uid, Pod: p.namespace + "/" + p.name, Text: text})
		}
	}
	return all
}

func (n *node) problems() (all []Problem) {
	if n.problem != "" {
		all = append(all, Problem{Node: n.name, Text: n.problem})
	}
	for i, used := range n.used {
		total := n.gpus.total[i]
		if used.MemoryMiB <= total.MemoryMiB && used.Cores <= total.Cores && used.Replicas <= total.Replicas {
			continue
		}
		all = append(all, Problem{Node: n.name, Text: fmt.Sprintf("GPU %s is overcommitted: %d of %d MiB, %d of %d%% of cores, "+
			"%d of %d replicas: delete pods there, or check which other scheduler uses its GPUs",
			n.gpus.inventory.GPUs[i].UUID, used.MemoryMiB, total.MemoryMiB, used.Cores, total.Cores, used.Replicas, total.Replicas)})
	}
	return all
}

type State struct {
	Nodes    []NodeState `json:"nodes"`
	Problems []Problem   `json:"problems,omitempty"`
}

type NodeState struct {
	Name       string     `json:"name"`
	Registered bool       `json:"registered"`
	GPUs       []GPUState `json:"gpus,omitempty"`
	Pods       []PodState `json:"pods,omitempty"`
}

type GPUState struct {
	scheduler.GPU
	Used scheduler.Use `json:"used"`
}

type PodState struct {
	UID        string          `json:"uid"`
	Pod        string          `json:"pod"` // namespace/name
	Phase      string          `json:"phase"`
	Owner      string          `json:"owner,omitempty"`
	Expires    *time.Time      `json:"expires,omitempty"` // of a reservation
	Containers [][]grant.Share `json:"containers"`
}

// State describes one node; all if name is empty.
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
		if r, ok := l.reservations[h.uid]; ok {
			p.Phase, p.Owner, p.Expires = "reserved", r.owner, &r.expiry
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

// GPUs calls f for each registered GPU, unsorted.
func (s *Snapshot) GPUs(f func(node string, gpu *scheduler.GPU, used scheduler.Use)) {
	s.each(func(n *node) {
		for i := range n.gpus.inventory.GPUs {
			f(n.name, &n.gpus.inventory.GPUs[i], n.used[i])
		}
	})
}

func (s *Snapshot) each(f func(n *node)) {
	for _, c := range s.table {
		for i := 0; c != nil && i < chunkSize; i++ {
			if c.nodes[i] != nil {
				f(c.nodes[i])
			}
		}
	}
}

func (s State) WriteText(to io.Writer) error {
	for _, p := range s.Problems {
		fmt.Fprintf(to, "! %s%s: %s\n", p.Node, p.Pod, p.Text)
	}
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tGPU\tMODEL\tMEMORY MiB\tCORES %\tREPLICAS\tSTATE")
	for _, n := range s.Nodes {
		name := n.Name
		if !n.Registered {
			name += " (gone)"
		}
		if len(n.GPUs) == 0 {
			fmt.Fprintf(t, "%s\tno GPUs\n", name)
		}
		for _, c := range n.GPUs {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\t%d/%d\t%d/%d\t%s\n", name, c.UUID, c.Model,
				c.Used.MemoryMiB, c.MemoryMiB, c.Used.Cores, c.Cores, c.Used.Replicas, c.Replicas, cmp.Or(c.Condition(), "ok"))
		}
	}
	fmt.Fprintln(t, "\nPOD\tNODE\tPHASE\tCONTAINER\tGPU\tMEMORY MiB\tCORES %\tUNTIL")
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			until := ""
			if p.Expires != nil {
				until = p.Expires.UTC().Format("15:04:05 MST") + " for " + p.Owner
			}
			for i, shares := range p.Containers {
				for _, share := range shares {
					fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%s\n", p.Pod, n.Name, p.Phase, i, share.UUID, share.MemoryMiB, share.CorePercent, until)
				}
			}
		}
	}
	return t.Flush()
}

// chunkSize is about the square root of a large cluster's nodes.
const chunkSize = 64

type chunk struct {
	version uint64 // unique
	nodes   [chunkSize]*node
}

// table is a persistent array of nodes by row. A node keeps its row, so chunks with equal versions are
// equal.
type table []*chunk

func (t table) at(row int) *node {
	if c := row / chunkSize; c < len(t) {
		return t[c].nodes[row%chunkSize]
	}
	return nil
}

func (t table) with(row int, n *node, version uint64) table {
	c := row / chunkSize
	next := make(table, max(len(t), c+1))
	copy(next, t)
	changed := new(chunk)
	if next[c] != nil {
		*changed = *next[c]
	}
	changed.version, changed.nodes[row%chunkSize] = version, n
	next[c] = changed
	return next
}

// shards is a persistent map by name. The zero value is empty.
type shards[V any] struct{ parts *[shardCount]map[string]V }

const shardCount = 128

var seed = maphash.MakeSeed()

func shardOf(name string) uint64 { return maphash.String(seed, name) % shardCount }

func (s shards[V]) get(name string) (V, bool) {
	if s.parts == nil {
		var none V
		return none, false
	}
	v, ok := s.parts[shardOf(name)][name]
	return v, ok
}

func (s shards[V]) with(name string, v V) shards[V] {
	next, part := s.copied(name)
	part[name] = v
	return next
}

func (s shards[V]) without(name string) shards[V] {
	if _, ok := s.get(name); !ok {
		return s
	}
	next, part := s.copied(name)
	delete(part, name)
	return next
}

func (s shards[V]) copied(name string) (shards[V], map[string]V) {
	next := new([shardCount]map[string]V)
	if s.parts != nil {
		*next = *s.parts
	}
	i := shardOf(name)
	part := maps.Clone(next[i])
	if part == nil {
		part = map[string]V{}
	}
	next[i] = part
	return shards[V]{next}, part
}
