package choose

import (
	"math"
	"math/bits"
	"slices"
)

// search finds the best set of n of up to 16 GPUs by branch and bound. A node of its tree has
// decided of some GPUs whether they are in the set. It is left as soon as what the other
// GPUs could add at best makes it no better than the best set that was found. That bound is,
// of each goal by itself:
//
//   - goalLinks: each GPU that may still come adds its links to the chosen ones, and half of
//     its best links to others that may come, of as many as are missing. Of these sums the
//     best, as many as are missing.
//   - goalWorst: the worst link so far.
//   - goalNUMA: the NUMA nodes so far, and as many more as are needed to make up the number.
//   - what each GPU counts for by itself: the best, as many as are missing.
//
// Comparing bounds goal by goal is right, since a list of numbers that are each at most
// another's is at most that list. GPUs that differ in nothing but their order (the same
// links, use and NUMA node) are taken in it: of sets that are the same but for such GPUs only
// the first is looked at.
//
// All of it is in arrays of fixed size: a search allocates nothing.
type search struct {
	m, n  int
	goals goals         // ends in goalOrder
	gpu   [maxExact]int // of question.candidates
	// link is normalized: less the worst link, and divided by what all then have in common. That
	// doesn't change which set is best, and a bound can be rounded down to a whole number.
	link            [maxExact][maxExact]int32
	base, unit      int64
	worth           [3][maxExact]int64 // what each GPU counts for goalUsed, goalRest and goalOrder
	ranked          [3][maxExact]uint8 // the GPUs by that, the best first
	group           [maxExact]uint8    // the GPU's NUMA node, numbered by the first GPU on it
	members         [maxExact]uint16   // the GPUs of the NUMA node of that number
	interchangeable [maxExact]uint16   // later GPUs that can't be told from the GPU
	// halves[i][v][k] is the sum of the best k links of GPU v with the GPUs from i on.
	halfSums [maxExact][maxExact][maxExact]int32
	// gain[k] is, with k GPUs chosen, how well each GPU is linked with them.
	gain  [maxExact + 1][maxExact]int32
	found bool
	best  values
	set   uint16
	nodes int // how many nodes of the tree were looked at
}

// The rows of search.worth.
const (
	worthUsed = iota
	worthRest
	worthOrder
)

// partial is what a node of the tree has decided.
type partial struct {
	chosen, banned uint16 // banned: decided, or as good as, to be out
	links          int64
	worst          int32
	worth          [3]int64
}

// exact appends the best n of the GPUs at.
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

// told are the values of the best set, in numbers that can be compared with another search's;
// goalOrder is left out.
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

// walk looks at all sets that agree with p on the GPUs before i.
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

// open is the GPUs from i on that may still be chosen.
func (s *search) open(i int, p *partial) uint16 {
	return uint16(1<<s.m-1) &^ (1<<i - 1) &^ p.banned
}

// promising says whether a set with p could be better than the best one.
func (s *search) mayImprove(i, left int, open uint16, p *partial) bool {
	for k, g := range s.goals.list[:s.goals.n] {
		if most := s.bound(g, i, left, open, p); most != s.best[k] {
			return most > s.best[k]
		}
	}
	return false
}

// bound is at least the value of a goal of each set of p and left of the open GPUs.
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

// boundLinks is how much left of the open GPUs add to the links at best.
func (s *search) boundLinks(i, left int, open uint16, chosen int) int64 {
	var top [maxExact]int32 // the best so far, in twice their worth
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

// numaStep is what one NUMA node more costs: more than all GPUs on any.
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
	for left > 0 { // the nodes with the most open GPUs first
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

// offer takes the whole set p if it is better than the best one.
func (s *search) keepIfBetter(p *partial) {
	if s.found && !s.mayImprove(0, 0, 0, p) {
		return
	}
	s.found, s.set = true, p.chosen
	for k, g := range s.goals.list[:s.goals.n] {
		s.best[k] = s.bound(g, 0, 0, 0, p)
	}
}
