// Package choose is the policies: which of a node's GPUs a container shall have, and how
// good a node is. It is plain numbers: no state, no clock, no Kubernetes. The same question
// has the same answer. The engine calls it for each container on each node that fits, so
// nothing is allocated and the common cases look at each GPU once.
//
// GPU policies are HAMi's words (annotation hami.io/gpu-scheduler-policy), one or a chain:
// the first decides, the next among what is equal to it, and so on; then the GPUs' order.
// A chain that names neither binpack nor spread ends in spread.
//
//	spread          the GPUs that are used least (the default)
//	binpack         the GPUs that are used most
//	topology-aware  the set with the best links, all added up; then that whose worst link is
//	                best. Of single GPUs, the one that the others miss least
//	numa            the set on the fewest NUMA nodes; then where the fewest GPUs are free
//	mutex           only GPUs that nobody uses: a rule, wherever it stands
//	tencent         gpu-manager's evaluators, which decide alone (see tencent.go)
//
// To topology-aware, GPUs that a node tells no links of are all equal. Of sets that are
// equal to the whole chain it takes the one that leaves the best links to the others.
//
// How much a GPU is used includes what the container asks for. HAMi documents the same,
// but its score compares the vendor's name with the GPU's model and so leaves the request
// out: GPUs of different sizes are then compared by what is gone, not by what will be.
package choose

import "github.com/gpuslice/gpuslice/scheduler"

// Candidate is a GPU that the container fits on.
type Candidate struct {
	// Position is that in Inventory.GPUs, and so in its Links.
	Position int
	// NUMA is the memory node beside it; the GPUs of scheduler.NUMAUnknown are one group.
	NUMA int
	// Used is what others have of the GPU, Total all that there is, Need what this
	// container takes of it.
	Used, Total, Need scheduler.Use
	// Exclusive says that the container takes the GPU for itself alone.
	Exclusive bool
}

// GPUs picks n of the candidates, each of which the container fits on. It returns their
// indices in candidates, ascending, or nil if there are not as many, or no n of them satisfy
// a rule (mutex, numa-bind).
//
// Of up to 16 candidates the set is the best there is, by any policy. Of more it is the best
// by spread and binpack, and else a good one that satisfies the rules.
func GPUs(p GPUPolicy, candidates []Candidate, links [][]int, n int) []int {
	chosen, ok := AppendGPUs(nil, p, candidates, links, n)
	if !ok {
		return nil
	}
	return chosen
}
