package choose

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// setUp orders the GPUs by links, or by NUMA node if links don't count.
func (s *search) setUp(q *selection, at []int, g goals) {
	linked := g.has(goalLinks) || g.has(goalWorst)
	g.add(goalOrder)
	s.m, s.n, s.goals = len(at), q.n, g
	var early [maxExact]int64
	for k, i := range at {
		e := -int64(q.candidates[i].NUMA)
		if linked {
			e = q.degree(i, q.pool)
		}
		v := k
		for ; v > 0 && early[v-1] < e; v-- {
			early[v], s.gpu[v] = early[v-1], s.gpu[v-1]
		}
		early[v], s.gpu[v] = e, i
	}
	for v, i := range s.gpu[:s.m] {
		s.worth[worthUsed][v] = g.sign * q.score(i)
		s.worth[worthOrder][v] = 1 << (maxExact - slices.Index(at, i))
		s.group[v] = uint8(v)
		for u := range v {
			if s.group[u] == uint8(u) && q.candidates[s.gpu[u]].NUMA == q.candidates[i].NUMA {
				s.group[v] = uint8(u)
			}
		}
		s.members[s.group[v]] |= 1 << v
		if !linked {
			continue
		}
		s.worth[worthRest][v] = -early[v]
		for u := range v {
			s.link[u][v] = q.link(i, s.gpu[u])
			s.link[v][u] = s.link[u][v]
		}
	}
	s.normalize()
	s.rank()
	s.findInterchangeable()
	if g.has(goalLinks) {
		s.sumHalves()
	}
}

// normalize reduces the links to small numbers.
func (s *search) normalize() {
	least, common := int32(math.MaxInt32), int32(0)
	for v := range s.m {
		for u := range v {
			least = min(least, s.link[v][u])
		}
	}
	for v := range s.m {
		for u := range v {
			common = gcd(common, s.link[v][u]-least)
		}
	}
	common = max(common, 1)
	for v := range s.m {
		for u := range v {
			s.link[v][u] = (s.link[v][u] - least) / common
			s.link[u][v] = s.link[v][u]
		}
	}
	s.base, s.unit = int64(least), int64(common)
}

func gcd(a, b int32) int32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (s *search) rank() {
	for row := range s.ranked {
		worth, ranked := &s.worth[row], s.ranked[row][:s.m]
		for v := range ranked {
			ranked[v] = uint8(v)
		}
		slices.SortStableFunc(ranked, func(a, b uint8) int { return cmp.Compare(worth[b], worth[a]) })
	}
}

// findInterchangeable relies on transitivity.
func (s *search) findInterchangeable() {
	first := uint16(0)
	var kind [maxExact]uint8
	for v := range s.m {
		kind[v] = uint8(v)
		for set := first; set != 0; set &= set - 1 {
			if u := bits.TrailingZeros16(set); s.alike(u, v) {
				kind[v] = uint8(u)
				break
			}
		}
		if kind[v] == uint8(v) {
			first |= 1 << v
		}
		for u := range v {
			if kind[u] == kind[v] {
				s.interchangeable[u] |= 1 << v
			}
		}
	}
}

func (s *search) alike(u, v int) bool {
	if s.worth[worthUsed][u] != s.worth[worthUsed][v] || s.worth[worthRest][u] != s.worth[worthRest][v] || s.group[u] != s.group[v] {
		return false
	}
	for x := range s.m {
		if x != u && x != v && s.link[u][x] != s.link[v][x] {
			return false
		}
	}
	return true
}

// sumHalves fills halfSums from the last GPU on.
func (s *search) sumHalves() {
	var sorted [maxExact][maxExact]int32 // each GPU's links with GPUs from i on, best first
	for i := s.m - 1; i >= 0; i-- {
		for v := i + 1; v < s.m; v++ {
			place(&sorted[v], s.m-i-2, s.link[v][i])
			place(&sorted[i], v-i-1, s.link[v][i])
		}
		for v := i; v < s.m; v++ {
			sums := &s.halfSums[i][v]
			for k := 0; k < s.m-i-1; k++ {
				sums[k+1] = sums[k] + sorted[v][k]
			}
		}
	}
}

// place inserts x into the first n, sorted descending.
func place(sorted *[maxExact]int32, n int, x int32) {
	for ; n > 0 && sorted[n-1] < x; n-- {
		sorted[n] = sorted[n-1]
	}
	sorted[n] = x
}

// greedy grows a set from each GPU by best link: the search only has to prove that one is optimal.
func (s *search) greedy() {
	same := uint16(0)
	for first := range s.m {
		if same>>first&1 == 1 {
			continue // equal to an earlier set
		}
		same |= s.interchangeable[first]
		p := partial{worst: math.MaxInt32}
		var gain [maxExact]int32
		for v := first; ; {
			p = s.grown(v, &p, &gain)
			if bits.OnesCount16(p.chosen) == s.n {
				break
			}
			v = -1
			for u := range s.m {
				if p.chosen>>u&1 == 0 && (v < 0 || gain[u] > gain[v]) {
					v = u
				}
			}
		}
		s.keepIfBetter(&p)
	}
}

// grown adds GPU v to p and updates gain.
func (s *search) grown(v int, p *partial, gain *[maxExact]int32) partial {
	next := *p
	next.chosen |= 1 << v
	next.links += int64(gain[v])
	row := &s.link[v]
	for set := p.chosen; set != 0; set &= set - 1 {
		next.worst = min(next.worst, row[bits.TrailingZeros16(set)])
	}
	for x := range next.worth {
		next.worth[x] += s.worth[x][v]
	}
	for u := range s.m {
		gain[u] += row[u]
	}
	return next
}
