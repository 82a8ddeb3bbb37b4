package choose

import "slices"

// goal is a criterion for sets, higher is better. The first goal that differs decides.
type goal uint8

const (
	goalNone  goal = iota
	goalLinks      // sum of the links of all pairs
	goalWorst      // worst link
	goalUsed       // use, with goals.sign
	goalNUMA       // few NUMA nodes, then few candidates on them
	goalRest       // few links to the rest
	goalOrder      // tie-break by position
)

const maxGoals = 8

type goals struct {
	list [maxGoals]goal
	n    int
	sign int64 // of goalUsed: 1 more is better, -1 less
}

func (g *goals) add(more ...goal) {
	for _, x := range more {
		if !g.has(x) {
			g.list[g.n] = x
			g.n++
		}
	}
}

func (g *goals) has(x goal) bool { return slices.Contains(g.list[:g.n], x) }

// linear: only use counts, so the best GPUs are the best set.
func (g *goals) linear() bool { return g.n == 1 && g.list[0] == goalUsed }

func (q *selection) goals() goals {
	var g goals
	topology := false
	for _, k := range q.policy.keys {
		switch k {
		case keyBinpack, keySpread:
			if !g.has(goalUsed) {
				g.sign = 1
				if k == keySpread {
					g.sign = -1
				}
				g.add(goalUsed)
			}
		case keyTopology:
			// With equal links (NVSwitch) there is nothing to search.
			if topology = q.links != nil && !q.uniform(); topology {
				g.add(goalLinks, goalWorst)
			}
		case keyNUMA:
			g.add(goalNUMA)
		}
	}
	if topology {
		g.add(goalRest)
	}
	return g
}

// uniform: all pairs have the same link.
func (q *selection) uniform() bool {
	for k, i := range q.pool {
		for _, j := range q.pool[:k] {
			if q.link(i, j) != q.link(q.pool[0], q.pool[1]) {
				return false
			}
		}
	}
	return true
}

// single returns the best GPU, the first of equal ones.
func (q *selection) single() int {
	choice := q.pool[0]
	best := q.wordValue(0, choice)
	for _, i := range q.pool[1:] {
		if v := q.wordValue(0, i); v > best || v == best && q.better(i, choice) {
			choice, best = i, v
		}
	}
	return choice
}

func (q *selection) better(i, j int) bool {
	for k := 1; k < maxKeys && q.policy.keys[k] != keyNone; k++ {
		if a, b := q.wordValue(k, i), q.wordValue(k, j); a != b {
			return a > b
		}
	}
	return false
}

// wordValue rates a GPU by the k-th word.
func (q *selection) wordValue(k, i int) int64 {
	switch q.policy.keys[k] {
	case keyBinpack:
		return q.score(i)
	case keySpread:
		return -q.score(i)
	case keyNUMA:
		return -int64(q.sameNUMA(i, q.pool))
	}
	if q.links == nil {
		return 0
	}
	return -q.degree(i, q.pool) // topology-aware: the fewest links to others
}

// bestByUse appends the n best GPUs, the earlier of equal ones.
func (q *selection) bestByUse(dst, at []int, sign int64) ([]int, values) {
	var buffer [maxExact]int64
	scores, start := buffer[:0], len(dst) // best first
	for _, i := range at {
		score := sign * q.score(i)
		if len(scores) == q.n {
			if scores[q.n-1] >= score {
				continue
			}
			scores, dst = scores[:q.n-1], dst[:start+q.n-1]
		}
		scores, dst = append(scores, score), append(dst, i)
		for k := len(scores) - 1; k > 0 && scores[k-1] < score; k-- {
			scores[k-1], scores[k] = scores[k], scores[k-1]
			dst[start+k-1], dst[start+k] = dst[start+k], dst[start+k-1]
		}
	}
	sum := int64(0)
	for _, s := range scores {
		sum += s
	}
	slices.Sort(dst[start:])
	return dst, values{sum}
}
