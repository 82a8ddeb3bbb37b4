package wish

import (
	"cmp"
	"slices"

	"github.com/gpuslice/gpuslice/grant"
)

// bestFit gives each amount a card of its own, and takes the cards with the least left
// over in sum. It returns nil where there is no way.
//
// Sets of cards that can be given to different amounts are independent in the sense of
// a transversal matroid, so that the greedy way is the best one: cards are looked at from
// the fullest on, and one is taken if those that are taken and it can all have amounts,
// for which the others may change theirs (Kuhn's augmenting paths).
func bestFit(amounts []Amount, list []candidate, c Config) []grant.Share {
	m := matching{amounts: amounts, list: slices.Clone(list), c: c, cardOf: make([]int, len(amounts))}
	m.alike = !slices.ContainsFunc(amounts, func(a Amount) bool { return a != amounts[0] })
	m.sort()
	for i := range m.cardOf {
		m.cardOf[i] = none
	}
	taken := 0
	for card := 0; card < len(m.list) && taken < len(amounts); card++ {
		if m.give(card, make([]bool, len(amounts))) {
			taken++
		}
	}
	if taken < len(amounts) {
		return nil
	}
	if m.alike {
		// Any of them has any amount: the container sees them as the node does.
		slices.SortFunc(m.cardOf, func(a, b int) int { return inOrder(m.list[a], m.list[b]) })
	}
	shares := make([]grant.Share, len(amounts))
	for i, card := range m.cardOf {
		shares[i] = m.list[card].share(amounts[i])
	}
	return shares
}

// none is no card.
const none = -1

// matching is a way to give cards to amounts.
type matching struct {
	amounts []Amount
	list    []candidate
	c       Config
	cardOf  []int // of each amount, or none
	alike   bool  // all amounts are the same
}

// sort puts the cards that have the least left first. What is left where amounts differ is
// what is free before, as their sum is the same for any choice. (But for percentages of
// cards of different sizes, beside other amounts.) Of MIG devices nothing is left, and the
// smallest is the best.
func (m *matching) sort() {
	left := func(d candidate) int64 {
		switch {
		case d.mig():
			return d.MemoryMiB
		case m.alike:
			return d.MemoryMiB - d.used.MemoryMiB - m.amounts[0].Memory.Of(d.Card)
		default:
			return d.MemoryMiB - d.used.MemoryMiB
		}
	}
	slices.SortFunc(m.list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(left(a), left(b)), inOrder(a, b))
	})
}

// can says whether a card may have an amount.
func (m *matching) can(card, amount int) bool {
	d, a := m.list[card], m.amounts[amount]
	return d.fits(a) && m.c.checkMaximum(d, d.share(a)) == nil
}

// give finds an amount for the card, for which other cards may change theirs. Amounts that
// were tried are in seen.
func (m *matching) give(card int, seen []bool) bool {
	for amount := range m.amounts {
		if seen[amount] || !m.can(card, amount) {
			continue
		}
		seen[amount] = true
		if m.cardOf[amount] == none || m.give(m.cardOf[amount], seen) {
			m.cardOf[amount] = card
			return true
		}
	}
	return false
}
