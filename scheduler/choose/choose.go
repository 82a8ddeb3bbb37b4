// Package choose is the policies: which of a node's cards a container shall have, and
// how good a node is. It is plain numbers: no state, no clock, no Kubernetes. The same
// question has the same answer. The engine calls it, for each container on each node that
// fits, so the common cases allocate nothing and look at each card once.
//
// Card policies are HAMi's words (annotation hami.io/gpu-scheduler-policy), one or a
// chain: the first decides, the next among what is equal to it, and so on. What is equal
// to all of them is decided by the order of the cards.
//
//	spread          the cards that are used least (the default)
//	binpack         the cards that are used most
//	topology-aware  the set that is connected best (exactly, see search); of single
//	                cards, the one that the others miss least
//	numa            the set on the fewest NUMA nodes, and there where the fewest cards are free
//	mutex           only cards that nobody uses; a rule, wherever it stands
//	tencent         gpu-manager's evaluators; decides alone (see tencent.go)
//
// Cards that nodes tell no links of are all equal to topology-aware.
//
// How much a card is used includes what the container asks for. HAMi documents the same, but since its
// score compares the vendor's name with the card's model it leaves the request out: there
// a big container and a small one are sent to the same card of several sizes.
package choose

import "github.com/gpuslice/gpuslice/scheduler"

// Candidate is a card that the container fits on.
type Candidate struct {
	// Position is that in Inventory.Cards, and so in its Links.
	Position int
	// NUMA is the memory node beside it; the cards of scheduler.NUMAUnknown are one group.
	NUMA int
	// Used is what others have of the card, Total all that there is, Need what this
	// container takes of it.
	Used, Total, Need scheduler.Use
	// Exclusive says that the container takes the card for itself alone.
	Exclusive bool
}

// Cards picks n of the candidates, each of which the container fits on. It
// returns their indices in candidates, ascending, as the container shall see them, or nil if there
// are not as many, or no n of them satisfy a rule (mutex, numa-bind). Of what the policy holds equal, those that
// come first in candidates are taken.
//
// The set is the best there is for up to 16 candidates, in any policy; for more than that
// (and up to 62 with topology-aware, numa or tencent; the rest are left out) it is the best that a bounded search finds.
func Cards(p CardPolicy, candidates []Candidate, links [][]int, n int) []int {
	chosen, ok := AppendCards(nil, p, candidates, links, n)
	if !ok {
		return nil
	}
	return chosen
}
