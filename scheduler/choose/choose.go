// Package choose has the policies: which of a node's GPUs a container gets, and how good a node is.
// Functions are pure and allocate nothing; the engine calls them for each container on each fitting node.
//
// GPU policies are HAMi's (annotation hami.io/gpu-scheduler-policy), one or a chain in which later words
// break ties; then the GPUs' order. A chain without binpack and spread ends with spread.
//
//	spread          the least used GPUs (the default)
//	binpack         the most used GPUs
//	topology-aware  the set with the best sum of links, then the best worst link; of single GPUs, the one least linked to others
//	numa            the set on the fewest NUMA nodes, then the fewest candidates there
//	mutex           only unused GPUs, whatever its position
//	tencent         gpu-manager's evaluators (tencent.go)
//
// Equal sets for topology-aware: the one that leaves the best links. Unlike in HAMi's implementation, use
// includes the new container, as HAMi documents.
package choose

import "github.com/gpuslice/gpuslice/scheduler"

// Candidate is a GPU with enough free for the container.
type Candidate struct {
	// Position is its index in Inventory.GPUs and Links.
	Position int
	NUMA     int
	// Used is by others, Need by this container.
	Used, Total, Need scheduler.Use
	// Exclusive: the container requires an unused GPU.
	Exclusive bool
}

// GPUs picks n candidates and returns their indices, ascending; nil if no n satisfy the rules (mutex,
// numa-bind). Up to 16 candidates the set is optimal; above that it is for spread and binpack only.
func GPUs(p GPUPolicy, candidates []Candidate, links [][]int, n int) []int {
	chosen, ok := AppendGPUs(nil, p, candidates, links, n)
	if !ok {
		return nil
	}
	return chosen
}
