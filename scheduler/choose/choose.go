// Package choose has the policies: which of a node's GPUs a container gets, and how good a node is. It is
// pure and allocates nothing.
//
// GPU policies are HAMi's (annotation hami.io/gpu-scheduler-policy), one or a chain: later words break
// ties, then the GPUs' order. A chain without binpack and spread ends with spread.
//
//	spread          the least used GPUs (the default)
//	binpack         the most used GPUs
//	topology-aware  the best sum of links, then the best worst link; one GPU: the least linked
//	numa            the fewest NUMA nodes, then the fewest candidates there
//	mutex           only unused GPUs
//	tencent         gpu-manager's evaluators (tencent.go)
//
// Among equal sets, topology-aware leaves the best links. Use includes the new container, as HAMi documents
// but does not implement.
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
