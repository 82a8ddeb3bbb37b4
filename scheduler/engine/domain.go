package engine

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Domain is the nodes with one value of a label, such as a rack's.
type Domain struct {
	Label, Value string
	Nodes        []string
	freeMiB      int64
}

// member is a pod of a group that has no GPUs yet.
type member struct {
	pod        *scheduler.Pod
	request    *request.Request
	evaluation *Evaluation
}

// Domain returns the fullest domain of the label that has room for all pods that request GPUs, beside those that
// have GPUs already, which fix the domain. It is nil if none was found. Other nodes than those of usable do not
// count; nil: all do. The pods are placed one by one, the largest first: not all combinations are tried.
func (e *Engine) Domain(s *Snapshot, label string, pods []*scheduler.Pod, usable func(node string) bool) *Domain {
	fixed := ""
	var rest []member
	for _, p := range pods {
		r, err := e.Request(p)
		if err != nil || r == nil {
			continue
		}
		if at := e.AllocatedNode(p.UID); at != "" {
			n := s.node(at)
			if n == nil || n.labels[label] == "" || fixed != "" && fixed != n.labels[label] {
				return nil
			}
			fixed = n.labels[label]
			continue
		}
		if v := e.Evaluate(s, p, r); v.Err() == nil {
			rest = append(rest, member{p, r, v})
		}
	}
	slices.SortStableFunc(rest, func(a, b member) int { return cmp.Compare(b.request.GPUMemory(), a.request.GPUMemory()) })
	for _, d := range s.domains(label, fixed, usable) {
		if e.fitTogether(s, rest, d.Nodes) {
			return d
		}
	}
	return nil
}

// domains are sorted by their free memory. value limits them to one; "" does not.
func (s *Snapshot) domains(label, value string, usable func(string) bool) []*Domain {
	byValue := map[string]*Domain{}
	s.each(func(n *node) {
		v := n.labels[label]
		if v == "" || value != "" && v != value || !n.offers() || usable != nil && !usable(n.name) {
			return
		}
		d := byValue[v]
		if d == nil {
			d = &Domain{Label: label, Value: v}
			byValue[v] = d
		}
		d.Nodes = append(d.Nodes, n.name)
		for i, total := range n.gpus.total {
			if n.gpus.usable[i] == OK {
				d.freeMiB += max(0, total.MemoryMiB-n.used[i].MemoryMiB)
			}
		}
	})
	all := make([]*Domain, 0, len(byValue))
	for _, d := range byValue {
		slices.Sort(d.Nodes)
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *Domain) int {
		return cmp.Or(cmp.Compare(a.freeMiB, b.freeMiB), cmp.Compare(a.Value, b.Value))
	})
	return all
}

func (e *Engine) fitTogether(s *Snapshot, pods []member, nodes []string) bool {
	o := s.Overlay()
	for _, m := range pods {
		at := m.evaluation.best(o, nodes)
		if at == "" {
			return false
		}
		o = e.With(o, at, m.pod, m.request)
	}
	return true
}

// best is the node with the highest score, the first among equals; "": it fits on none.
func (v *Evaluation) best(o *Overlay, nodes []string) (best string) {
	most := int64(-1)
	for _, name := range nodes {
		if verdict := v.On(o, name); verdict.Fits && verdict.Score > most {
			best, most = name, verdict.Score
		}
	}
	return best
}
