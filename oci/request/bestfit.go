package request

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/grant"
)

// bestFit assigns a different GPU to each amount and minimizes the sum of free memory on these GPUs.
// It returns nil if that is impossible.
//
// The assignable sets of GPUs form a transversal matroid, so a greedy choice is optimal: from the
// fullest GPU on, add each GPU that can be assigned together with the others (Kuhn's augmenting
// paths).
func bestFit(amounts []Amount, list []candidate, c Config) []grant.Share {
	m := matching{amounts: amounts, list: slices.Clone(list), c: c, gpuOf: make([]int, len(amounts))}
	m.alike = !slices.ContainsFunc(amounts, func(a Amount) bool { return a != amounts[0] })
	m.sort()
	for i := range m.gpuOf {
		m.gpuOf[i] = none
	}
	assigned := 0
	for gpu := 0; gpu < len(m.list) && assigned < len(amounts); gpu++ {
		if m.assign(gpu, make([]bool, len(amounts))) {
			assigned++
		}
	}
	if assigned < len(amounts) {
		return nil
	}
	if m.alike {
		// The container lists them as the node does.
		slices.SortFunc(m.gpuOf, func(a, b int) int { return inOrder(m.list[a], m.list[b]) })
	}
	shares := make([]grant.Share, len(amounts))
	for i, gpu := range m.gpuOf {
		shares[i] = m.list[gpu].share(amounts[i])
	}
	return shares
}

// none is an amount without a GPU.
const none = -1

type matching struct {
	amounts []Amount
	list    []candidate
	c       Config
	gpuOf   []int // of each amount, or none
	alike   bool  // all amounts are the same
}

// sort orders by free memory afterwards; if the amounts differ, by free memory before, because their
// sum is constant (except for percentages of different GPUs). MIG devices are used whole.
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

func (m *matching) can(gpu, amount int) bool {
	d, a := m.list[gpu], m.amounts[amount]
	return d.fits(a) && m.c.checkMaximum(d, d.share(a)) == nil
}

// assign finds an amount for the GPU, and can move other GPUs to other amounts.
func (m *matching) assign(gpu int, seen []bool) bool {
	for amount := range m.amounts {
		if seen[amount] || !m.can(gpu, amount) {
			continue
		}
		seen[amount] = true
		if m.gpuOf[amount] == none || m.assign(m.gpuOf[amount], seen) {
			m.gpuOf[amount] = gpu
			return true
		}
	}
	return false
}
