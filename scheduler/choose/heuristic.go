package choose

import "slices"

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
