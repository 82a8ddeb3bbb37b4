package engine

import (
	"cmp"
	"slices"
)

// Best returns at most n nodes that fit and are accepted: the best first, equal ones by name. accept is asked
// about those only that would be among the best of the nodes before.
func (v *Evaluation) Best(n int, accept func(node string) bool) []string {
	if v.err != nil || n < 1 {
		return nil
	}
	type candidate struct {
		name  string
		score int64
	}
	order := func(a, b candidate) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.name, b.name)) }
	best := make([]candidate, 0, n) // in order when it has n
	plain := v.quotas == nil && v.ownNode == nil
	for i, nodes := range v.snapshot.table {
		if nodes == nil {
			continue
		}
		for k, node := range nodes.nodes {
			if !node.offers() {
				continue
			}
			o := &v.outcomes.chunks[i].outcomes[k]
			fits, c := o.fits, candidate{node.name, int64(o.score)}
			if !plain {
				verdict := v.atRow(node, o, v.quotas)
				fits, c.score = verdict.Fits, verdict.Score
			}
			if !fits || len(best) == n && order(best[n-1], c) < 0 || !accept(node.name) {
				continue
			}
			if len(best) == n {
				at, _ := slices.BinarySearchFunc(best, c, order)
				best = slices.Insert(best[:n-1], at, c)
			} else if best = append(best, c); len(best) == n {
				slices.SortFunc(best, order)
			}
		}
	}
	if len(best) < n {
		slices.SortFunc(best, order)
	}
	names := make([]string, len(best))
	for i := range best {
		names[i] = best[i].name
	}
	return names
}
