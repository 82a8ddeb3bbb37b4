package choose

import "slices"

// goal is one number by which sets of GPUs are compared, the higher the better. A chain of
// words becomes a list of goals: the first that differs decides.
type goal uint8

const (
	goalNone  goal = iota
	goalLinks      // the sum of the links between each two of the set
	goalWorst      // the worst of them
	goalUsed       // how much the GPUs are used, or how little
	goalNUMA       // few NUMA nodes; then few GPUs on them
	goalRest       // how little the set is linked with all GPUs there are to choose from: what the rest keeps
	goalOrder      // the first GPUs; differs for each two sets
)

// maxGoals has room for all and one more.
const maxGoals = 8

// goals is the list, up to the first goalNone. Sets of equal values for all of it are as good.
type goals struct {
	list [maxGoals]goal
	n    int
	sign int64 // of goalUsed: 1 the more the better, -1 the less
}

func (g *goals) add(more ...goal) {
	for _, x := range more {
		if !g.has(x) {
			g.list[g.n] = x
			g.n++
		}
	}
}

func (g *goals) has(x goal) bool {
	for _, y := range g.list[:g.n] {
		if x == y {
			return true
		}
	}
	return false
}

// linear says that only each GPU's use counts, so that the best GPUs are the best set.
func (g *goals) linear() bool { return g.n == 1 && g.list[0] == goalUsed }

// goals is the chain for n > 1. It is the same for all NUMA nodes that numa-bind compares.
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
			// Where all are connected alike, as by an NVSwitch, there is nothing to search.
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

// uniform says that all pairs of the GPUs are connected as well.
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

// single is the best of the GPUs by the chain, the first of equal ones.
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

// better compares two GPUs by what follows the chain's first word.
func (q *selection) better(i, j int) bool {
	for k := 1; k < maxKeys && q.policy.keys[k] != keyNone; k++ {
		if a, b := q.wordValue(k, i), q.wordValue(k, j); a != b {
			return a > b
		}
	}
	return false
}

// worth is how good a single GPU is by the k-th word of the chain.
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
	return -q.degree(i, q.pool) // of topology-aware: the one that is missed least
}

// top appends the n GPUs that are best by themselves, the earlier of equal ones.
func (q *selection) bestByUse(dst, at []int, sign int64) ([]int, values) {
	var room [maxExact]int64
	scores, start := room[:0], len(dst) // of those chosen so far, the best first
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
