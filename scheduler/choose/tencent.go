package choose

import (
	"math/bits"
	"slices"
)

// The policy tencent uses gpu-manager's evaluators:
//
//  - share, for a part of a GPU: the fewest free cores that suffice, then the least free memory, then the
//    fewest containers.
//  - fragment, for one GPU: the worst links to other free GPUs, compared from the best link on.
//  - link, for several GPUs: the smallest group connected at the best level with enough GPUs, and its best
//    set.
//
// Unlike gpu-manager's, they do not break a pair for a GPU that is single on its socket (tke#226), do not
// depend on map order, and know NVLink.

// blockMiB is the resolution in which memory is compared.
const blockMiB = 256

func (q *selection) tencent(dst, at []int) ([]int, values) {
	switch {
	case q.n > 1 && len(at) > maxExact:
		return q.heuristic(dst, at, linkGoals())
	case q.n > 1:
		return q.group(dst, at)
	case q.candidates[at[0]].Exclusive:
		return append(dst, q.fragment(at)), values{}
	}
	return append(dst, q.share(at)), values{}
}

func linkGoals() goals {
	var g goals
	g.add(goalWorst, goalLinks, goalRest)
	return g
}

// share returns the most used GPU; of unused ones the one with the fewest links to others.
func (q *selection) share(at []int) int {
	choice := -1
	var best values
	for _, i := range at {
		c := &q.candidates[i]
		free := c.Total.Sub(c.Used)
		v := values{-int64(free.Cores), -(free.MemoryMiB / blockMiB), -int64(c.Used.Replicas)}
		if choice >= 0 && v.compare(best) < 0 {
			continue
		}
		if c.Used.Replicas <= 0 {
			for _, j := range at {
				if j != i && q.candidates[j].Used.Replicas <= 0 {
					v[3] -= int64(q.link(i, j))
				}
			}
		}
		if choice < 0 || v.compare(best) > 0 {
			choice, best = i, v
		}
	}
	return choice
}

func (q *selection) fragment(at []int) int {
	var buffer, bestBuffer [maxExact]int32
	choice, best := -1, bestBuffer[:0]
	for _, i := range at {
		links := buffer[:0]
		for _, j := range at {
			if j != i {
				links = append(links, -q.link(i, j))
			}
		}
		slices.Sort(links)
		better := choice < 0
		if !better {
			if order := slices.Compare(links, best); order != 0 {
				better = order > 0
			} else {
				better = q.candidates[i].Total.MemoryMiB < q.candidates[choice].Total.MemoryMiB
			}
		}
		if better {
			choice, best = i, append(best[:0], links...)
		}
	}
	return choice
}

// group appends n GPUs of the smallest group at the best possible level.
func (q *selection) group(dst, at []int) ([]int, values) {
	var link [maxExact][maxExact]int32
	level := int32(0)
	for k, i := range at {
		for l, j := range at[:k] {
			link[k][l] = q.link(i, j)
			link[l][k] = link[k][l]
			level = max(level, link[k][l])
		}
	}
	for start := len(dst); ; {
		var best values
		smallest, below := len(at)+1, int32(-1)
		for rest := uint32(1)<<len(at) - 1; rest != 0; {
			var buffer [maxExact]int
			members := buffer[:0]
			group := component(&link, rest, level)
			rest &^= group
			for ; group != 0; group &= group - 1 {
				k := bits.TrailingZeros32(group)
				members = append(members, at[k])
				for l := range at {
					if l != k && link[k][l] < level {
						below = max(below, link[k][l])
					}
				}
			}
			if len(members) < q.n || len(members) > smallest {
				continue
			}
			tried, v := q.exact(dst, members, linkGoals())
			if v[0] < int64(level) { // connected, but not pairwise
				continue
			}
			if len(members) < smallest || v.compare(best) > 0 {
				dst = append(dst[:start], tried[len(tried)-q.n:]...)
				smallest, best = len(members), v
			}
		}
		if smallest <= len(at) {
			return dst[:start+q.n], best
		}
		level = below
	}
}

// component returns the GPUs connected with the first of rest at the level or better.
func component(link *[maxExact][maxExact]int32, rest uint32, level int32) uint32 {
	group := rest & -rest
	for open := group; open != 0; {
		v := bits.TrailingZeros32(open)
		open &^= 1 << v
		for others := rest &^ group; others != 0; others &= others - 1 {
			if u := bits.TrailingZeros32(others); link[v][u] >= level {
				group |= 1 << u
				open |= 1 << u
			}
		}
	}
	return group
}
