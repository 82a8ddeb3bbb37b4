package engine

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Room is where the pods of a group fit at the same time, after the victims have ended.
type Room struct {
	Nodes   map[string]string // by the UID of a pod that requests GPUs
	Victims []Victim
}

// RoomForGroup finds pods to evict so that all pods of a group fit at the same time: of lower priority than each of them, and as
// unimportant and few on each node as possible. It returns nil if no evictions make room for all of them; then none should be made.
// GPUs that the pods have already count as free. usable limits the nodes of a pod; evictable excludes pods. The pods are placed
// one by one, the largest first: not all combinations are tried.
func (e *Engine) RoomForGroup(s *Snapshot, pods []*scheduler.Pod, usable func(podUID, node string) bool, evictable func(Victim) bool) *Room {
	o := s.Overlay()
	var rest []member
	lowest := int32(1<<31 - 1)
	for _, p := range pods {
		r, err := e.Request(p)
		if err != nil {
			return nil
		}
		lowest = min(lowest, p.Priority)
		if r == nil {
			continue
		}
		v := e.Evaluate(s, p, r)
		if v.Err() != nil {
			return nil
		}
		o = o.Without(v.own, p.UID)
		rest = append(rest, member{p, r, v})
	}
	slices.SortStableFunc(rest, func(a, b member) int { return cmp.Compare(b.request.GPUMemory(), a.request.GPUMemory()) })
	t := together{candidates: map[string][]*allocation{}, found: map[string]map[string]evictions{}}
	for _, h := range e.boundPods(s) {
		if h.priority < lowest && evictable(h.victim()) {
			t.candidates[h.placement.Node] = append(t.candidates[h.placement.Node], h)
		}
	}
	room := &Room{Nodes: map[string]string{}}
	for _, m := range rest {
		nodes := slices.DeleteFunc(m.evaluation.Nodes(), func(node string) bool { return !usable(m.pod.UID, node) })
		slices.Sort(nodes)
		at := m.evaluation.best(o, nodes)
		if at == "" {
			var victims []*allocation
			if at, victims = t.cheapest(o, m, nodes); at == "" {
				return nil
			}
			for _, h := range victims {
				o = o.Without(at, h.uid)
				room.Victims = append(room.Victims, h.victim())
			}
		}
		var ok bool
		if o, ok = m.evaluation.Put(o, at, m.request); !ok {
			return nil
		}
		t.changed(at)
		room.Nodes[m.pod.UID] = at
	}
	return room
}

// together remembers what evictions on a node would give a request, until the node changes.
type together struct {
	candidates map[string][]*allocation        // by node, the most important first
	found      map[string]map[string]evictions // by the request's signature and the node
}

type evictions struct {
	victims []*allocation
	fits    bool
}

func (t *together) changed(node string) {
	for _, byNode := range t.found {
		delete(byNode, node)
	}
}

// cheapest is the node on which the most important victim is the least important.
func (t *together) cheapest(o *Overlay, m member, nodes []string) (best string, victims []*allocation) {
	byNode := t.found[m.request.Signature]
	if byNode == nil || m.evaluation.quotas != nil { // quotas count all nodes
		byNode = map[string]evictions{}
		t.found[m.request.Signature] = byNode
	}
	for _, node := range nodes {
		c, known := byNode[node]
		if !known {
			c = m.evictionsOn(o, node, t.candidates[node])
			byNode[node] = c
		}
		if c.fits && (best == "" || less(c.victims, victims)) {
			best, victims = node, c.victims
		}
	}
	return best, victims
}

func (m member) evictionsOn(o *Overlay, node string, candidates []*allocation) evictions {
	if len(candidates) == 0 {
		return evictions{}
	}
	uids := make([]string, len(candidates))
	for i, h := range candidates {
		uids[i] = h.uid
	}
	needed, fits := m.evaluation.Victims(o, node, uids)
	c := evictions{fits: fits && len(needed) > 0}
	for _, h := range candidates {
		if slices.Contains(needed, h.uid) {
			c.victims = append(c.victims, h)
		}
	}
	return c
}
