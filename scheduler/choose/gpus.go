package choose

import "slices"

const maxExact = 16

// AppendGPUs picks n candidates and appends their indices, ascending, to dst. ok is false if no n satisfy
// the rules (mutex, numa-bind). Up to 16 candidates the set is optimal; above that only for spread and
// binpack.
func AppendGPUs(dst []int, p GPUPolicy, candidates []Candidate, links [][]int, n int) (chosen []int, ok bool) {
	if n <= 0 || n > len(candidates) {
		return dst, n == 0
	}
	q := selection{policy: p.orDefault(), candidates: candidates, links: links, n: n}
	var buffer [maxExact]int
	at := buffer[:0] // allowed by the rules
	for i := range candidates {
		if !p.Mutex || candidates[i].Used.Replicas <= 0 {
			at = append(at, i)
		}
	}
	q.pool = at
	switch {
	case len(at) < n:
		return dst, false
	case p.NUMABind && n > 1:
		return q.bind(dst)
	case len(at) == n:
		return append(dst, at...), true
	}
	dst, _ = q.best(dst, at)
	return dst, true
}

func (p GPUPolicy) orDefault() GPUPolicy {
	p.Weights = p.Weights.orDefault()
	if !p.has(keyBinpack) && !p.has(keySpread) && !p.has(keyTencent) {
		p.keys[slices.Index(p.keys[:], keyNone)] = keySpread
	}
	return p
}

type selection struct {
	policy     GPUPolicy
	candidates []Candidate
	links      [][]int
	n          int
	pool       []int
}

func (q *selection) link(i, j int) int32 {
	return link(q.links, q.candidates[i].Position, q.candidates[j].Position)
}

// score is the GPU's use with the container on it.
func (q *selection) score(i int) int64 {
	c := &q.candidates[i]
	return q.policy.Weights.score(c.Used.Add(c.Need), c.Total)
}

// degree is the sum of the GPU's links with others.
func (q *selection) degree(i int, others []int) int64 {
	sum := int64(0)
	for _, j := range others {
		if j != i {
			sum += int64(q.link(i, j))
		}
	}
	return sum
}

func (q *selection) sameNUMA(i int, gpus []int) int {
	n := 0
	for _, j := range gpus {
		if q.candidates[j].NUMA == q.candidates[i].NUMA {
			n++
		}
	}
	return n
}

type values [maxGoals]int64

func (v values) compare(w values) int { return slices.Compare(v[:], w[:]) }

// best appends the best n of at.
func (q *selection) best(dst, at []int) ([]int, values) {
	if q.policy.keys[0] == keyTencent {
		return q.tencent(dst, at)
	}
	if q.n == 1 {
		return append(dst, q.single()), values{}
	}
	goals := q.goals()
	switch {
	case goals.linear():
		return q.bestByUse(dst, at, goals.sign)
	case len(at) <= maxExact:
		return q.exact(dst, at, goals)
	}
	return q.heuristic(dst, at, goals)
}

// bind uses one NUMA node; among equal sets the smallest.
func (q *selection) bind(dst []int) ([]int, bool) {
	var buffer [maxExact]int
	var most values
	start, found := len(dst), false
	for k, first := range q.pool {
		group, seen := buffer[:0], false
		for l, i := range q.pool {
			if q.candidates[i].NUMA == q.candidates[first].NUMA {
				group, seen = append(group, i), seen || l < k
			}
		}
		if seen || len(group) < q.n {
			continue
		}
		tried, v := q.best(dst, group)
		tried = tried[len(tried)-q.n:]
		v[maxGoals-1] = -int64(len(group))
		order := v.compare(most)
		if !found || order > 0 || order == 0 && tried[0] < dst[start] {
			dst, most, found = append(dst[:start], tried...), v, true
		}
	}
	return dst, found
}

// maxLink limits what a node may claim, far above 18 NVLinks (1860), to prevent overflow.
const maxLink = 1 << 14

// link is the worse of both directions; unknown links are 0.
func link(links [][]int, a, b int) int32 {
	return max(0, min(cell(links, a, b), cell(links, b, a)))
}

func cell(links [][]int, i, j int) int32 {
	if uint(i) >= uint(len(links)) || uint(j) >= uint(len(links[i])) {
		return 0
	}
	return int32(max(0, min(links[i][j], maxLink)))
}

// PairLinks appends the links of all pairs of positions, for Node.
func PairLinks(dst []int, links [][]int, positions []int) []int {
	for i, a := range positions {
		for _, b := range positions[:i] {
			dst = append(dst, int(link(links, a, b)))
		}
	}
	return dst
}

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
