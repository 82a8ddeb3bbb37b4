package request

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/grant"
)

// bestFit gives each amount a GPU of its own, and takes the GPUs with the least left
// over in sum. It returns nil where there is no way.
//
// Sets of GPUs that can be given to different amounts are independent in the sense of
// a transversal matroid, so that the greedy way is the best one: GPUs are looked at from
// the fullest on, and one is taken if those that are taken and it can all have amounts,
// for which the others may change theirs (Kuhn's augmenting paths).
func bestFit(amounts []Amount, list []candidate, c Config) []grant.Share {
	m := matching{amounts: amounts, list: slices.Clone(list), c: c, gpuOf: make([]int, len(amounts))}
	m.alike = !slices.ContainsFunc(amounts, func(a Amount) bool { return a != amounts[0] })
	m.sort()
	for i := range m.gpuOf {
		m.gpuOf[i] = none
	}
	taken := 0
	for gpu := 0; gpu < len(m.list) && taken < len(amounts); gpu++ {
		if m.give(gpu, make([]bool, len(amounts))) {
			taken++
		}
	}
	if taken < len(amounts) {
		return nil
	}
	if m.alike {
		// Any of them has any amount: the container sees them as the node does.
		slices.SortFunc(m.gpuOf, func(a, b int) int { return inOrder(m.list[a], m.list[b]) })
	}
	shares := make([]grant.Share, len(amounts))
	for i, gpu := range m.gpuOf {
		shares[i] = m.list[gpu].share(amounts[i])
	}
	return shares
}

// none is no GPU.
const none = -1

// matching is a way to give GPUs to amounts.
type matching struct {
	amounts []Amount
	list    []candidate
	c       Config
	gpuOf   []int // of each amount, or none
	alike   bool  // all amounts are the same
}

// sort puts the GPUs that have the least left first. What is left where amounts differ is
// what is free before, as their sum is the same for any choice. (But for percentages of
// GPUs of different sizes, beside other amounts.) Of MIG devices nothing is left, and the
// smallest is the best.
func (m *matching) sort() {
	left := func(d candidate) int64 {
		switch {
		case d.mig():
			return d.MemoryMiB
		case m.alike:
			return d.MemoryMiB - d.used.MemoryMiB - m.amounts[0].Memory.Of(d.GPU)
		default:
			return d.MemoryMiB - d.used.MemoryMiB
		}
	}
	slices.SortFunc(m.list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(left(a), left(b)), inOrder(a, b))
	})
}

// can says whether a GPU may have an amount.
func (m *matching) can(gpu, amount int) bool {
	d, a := m.list[gpu], m.amounts[amount]
	return d.fits(a) && m.c.checkMaximum(d, d.share(a)) == nil
}

// give finds an amount for the GPU, for which other GPUs may change theirs. Amounts that
// were tried are in seen.
func (m *matching) give(gpu int, seen []bool) bool {
	for amount := range m.amounts {
		if seen[amount] || !m.can(gpu, amount) {
			continue
		}
		seen[amount] = true
		if m.gpuOf[amount] == none || m.give(m.gpuOf[amount], seen) {
			m.gpuOf[amount] = gpu
			return true
		}
	}
	return false
}
