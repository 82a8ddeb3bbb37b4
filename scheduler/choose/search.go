package choose

import (
	"math"
	"math/bits"
	"slices"
)

// search finds the best set of n of up to 16 GPUs by branch and bound: a tree node has decided on some GPUs,
// and is cut if an upper bound of each goal can't beat the best set. It allocates nothing.
type search struct {
	m, n  int
	goals goals         // ends in goalOrder
	gpu   [maxExact]int // index of the candidate
	// link minus the worst link, divided by the common divisor: same best set, and bounds round down.
	link            [maxExact][maxExact]int32
	base, unit      int64
	worth           [3][maxExact]int64 // by the worth rows
	ranked          [3][maxExact]uint8 // the GPUs by worth, best first
	group           [maxExact]uint8    // the first GPU on the same NUMA node
	members         [maxExact]uint16   // the GPUs of that group
	interchangeable [maxExact]uint16   // later GPUs that differ only in order
	// halfSums[i][v][k] is the sum of GPU v's k best links with GPUs from i on.
	halfSums [maxExact][maxExact][maxExact]int32
	// gain[k] is each GPU's links with the k chosen ones.
	gain  [maxExact + 1][maxExact]int32
	found bool
	best  values
	set   uint16
	nodes int // visited tree nodes
}

// The rows of search.worth.
const (
	worthUsed = iota
	worthRest
	worthOrder
)

type partial struct {
	chosen, banned uint16 // banned: excluded
	links          int64
	worst          int32
	worth          [3]int64
}

func (q *selection) exact(dst, at []int, g goals) ([]int, values) {
	var s search
	s.setUp(q, at, g)
	s.run()
	start := len(dst)
	for set := s.set; set != 0; set &= set - 1 {
		dst = append(dst, s.gpu[bits.TrailingZeros16(set)])
	}
	slices.Sort(dst[start:])
	return dst, s.result()
}

// result returns values comparable with other searches, without goalOrder.
func (s *search) result() values {
	var v values
	for i, g := range s.goals.list[:s.goals.n-1] {
		v[i] = s.best[i]
		switch pairs := int64(s.n * (s.n - 1) / 2); g {
		case goalLinks:
			v[i] = v[i]*s.unit + pairs*s.base
		case goalWorst:
			v[i] = v[i]*s.unit + s.base
		}
	}
	return v
}

func (s *search) run() {
	if s.goals.has(goalLinks) || s.goals.has(goalWorst) {
		s.greedy()
	}
	s.walk(0, partial{worst: math.MaxInt32})
}

// walk visits all sets that agree with p before GPU i.
func (s *search) walk(i int, p partial) {
	for {
		s.nodes++
		left := s.n - bits.OnesCount16(p.chosen)
		if left == 0 {
			s.keepIfBetter(&p)
			return
		}
		for p.banned>>i&1 == 1 {
			i++
		}
		open := s.open(i, &p)
		if bits.OnesCount16(open) < left || s.found && !s.mayImprove(i, left, open, &p) {
			return
		}
		s.gain[s.n-left+1] = s.gain[s.n-left]
		s.walk(i+1, s.grown(i, &p, &s.gain[s.n-left+1]))
		p.banned |= 1<<i | s.interchangeable[i]
		i++
	}
}

func (s *search) open(i int, p *partial) uint16 {
	return uint16(1<<s.m-1) &^ (1<<i - 1) &^ p.banned
}

func (s *search) mayImprove(i, left int, open uint16, p *partial) bool {
	for k, g := range s.goals.list[:s.goals.n] {
		if most := s.bound(g, i, left, open, p); most != s.best[k] {
			return most > s.best[k]
		}
	}
	return false
}

// bound is an upper bound for p with left of the open GPUs.
func (s *search) bound(g goal, i, left int, open uint16, p *partial) int64 {
	switch g {
	case goalLinks:
		return p.links + s.boundLinks(i, left, open, s.n-left)
	case goalWorst:
		return int64(p.worst)
	case goalNUMA:
		return s.boundNUMA(left, open, p)
	case goalUsed:
		return s.boundWorth(worthUsed, left, open, p)
	case goalRest:
		return s.boundWorth(worthRest, left, open, p)
	}
	return s.boundWorth(worthOrder, left, open, p)
}

func (s *search) boundLinks(i, left int, open uint16, chosen int) int64 {
	var top [maxExact]int32 // doubled, best first
	n := 0
	gain, halves := &s.gain[chosen], &s.halfSums[i]
	for ; open != 0; open &= open - 1 {
		v := bits.TrailingZeros16(open)
		x := 2*gain[v] + halves[v][left-1]
		k := n
		if n == left {
			if k--; top[k] >= x {
				continue
			}
		} else {
			n++
		}
		for ; k > 0 && top[k-1] < x; k-- {
			top[k] = top[k-1]
		}
		top[k] = x
	}
	sum := int64(0)
	for _, x := range top[:n] {
		sum += int64(x)
	}
	return sum / 2
}

func (s *search) boundWorth(row, left int, open uint16, p *partial) int64 {
	sum := p.worth[row]
	for _, v := range s.ranked[row][:s.m] {
		if open>>v&1 == 1 {
			sum += s.worth[row][v]
			if left--; left == 0 {
				break
			}
		}
	}
	return sum
}

// numaStep is the cost of a NUMA node: more than all GPUs on it.
const numaStep = 1000

func (s *search) boundNUMA(left int, open uint16, p *partial) int64 {
	nodes, gpus, free := int64(0), int64(0), open
	for set := p.chosen; set != 0; {
		on := s.members[s.group[bits.TrailingZeros16(set)]]
		nodes++
		gpus += int64(bits.OnesCount16(on))
		left -= bits.OnesCount16(open & on)
		set &^= on
		free &^= on
	}
	gpus += int64(max(left, 0))
	for left > 0 { // nodes with the most open GPUs first
		var largest uint16
		for set := free; set != 0; {
			on := s.members[s.group[bits.TrailingZeros16(set)]]
			set &^= on
			if bits.OnesCount16(on&free) > bits.OnesCount16(largest&free) {
				largest = on
			}
		}
		nodes++
		left -= bits.OnesCount16(largest & free)
		free &^= largest
	}
	return -(nodes*numaStep + gpus)
}

func (s *search) keepIfBetter(p *partial) {
	if s.found && !s.mayImprove(0, 0, 0, p) {
		return
	}
	s.found, s.set = true, p.chosen
	for k, g := range s.goals.list[:s.goals.n] {
		s.best[k] = s.bound(g, 0, 0, 0, p)
	}
}

// heuristic, for more than 16 GPUs, grows a set from each GPU and improves the best by exchanges.
func (q *selection) heuristic(dst, at []int, g goals) ([]int, values) {
	g.add(goalOrder)
	var best []int
	var most values
	for _, first := range at {
		set := q.grow(first, at)
		if v := q.value(set, at, &g); best == nil || v.compare(most) > 0 {
			best, most = set, v
		}
	}
	most = q.improve(best, at, &g)
	slices.Sort(best)
	most[g.n-1] = 0 // not comparable with other searches
	return append(dst, best...), most
}

// grow adds the best linked GPU, then one on the same NUMA node.
func (q *selection) grow(first int, at []int) []int {
	set := []int{first}
	for len(set) < q.n {
		next, most := -1, [2]int64{}
		for _, i := range at {
			if slices.Contains(set, i) {
				continue
			}
			if v := [2]int64{q.degree(i, set), int64(q.sameNUMA(i, set))}; next < 0 || slices.Compare(v[:], most[:]) > 0 {
				next, most = i, v
			}
		}
		set = append(set, next)
	}
	return set
}

func (q *selection) improve(set, at []int, g *goals) values {
	best := q.value(set, at, g)
	for better := true; better; {
		better = false
		for k := range set {
			for _, i := range at {
				if slices.Contains(set, i) {
					continue
				}
				old := set[k]
				set[k] = i
				if v := q.value(set, at, g); v.compare(best) > 0 {
					best, better = v, true
				} else {
					set[k] = old
				}
			}
		}
	}
	return best
}

func (q *selection) value(set, at []int, g *goals) values {
	var v values
	for x, goal := range g.list[:g.n] {
		for k, i := range set {
			switch goal {
			case goalLinks:
				v[x] += q.degree(i, set[:k])
			case goalWorst:
				for _, j := range set[:k] {
					if l := int64(q.link(i, j)); k == 1 || l < v[x] {
						v[x] = l
					}
				}
			case goalUsed:
				v[x] += g.sign * q.score(i)
			case goalNUMA:
				if q.sameNUMA(i, set[:k]) == 0 {
					v[x] -= numaStep + int64(q.sameNUMA(i, at))
				}
			case goalRest:
				v[x] -= q.degree(i, q.pool)
			case goalOrder:
				v[x] -= int64(i)
			}
		}
	}
	return v
}
