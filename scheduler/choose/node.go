package choose

import (
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

// MaxNodeScore is the best score of a node.
const MaxNodeScore = 10000

// NodePolicy is how nodes are compared. The zero value is HAMi's default, binpack.
type NodePolicy struct {
	keys [3]key // up to the first keyNone
}

// ParseNodePolicy reads HAMi's annotation hami.io/node-scheduler-policy: binpack, spread
// or topology-aware, or a chain of them; an empty text is the default. numa and mutex say
// nothing of nodes.
func ParseNodePolicy(text string) (NodePolicy, error) {
	var p NodePolicy
	words, err := parseChain(text, "node policy", Binpack, Spread, Topology)
	for i, word := range words {
		p.keys[i] = map[string]key{Binpack: keyBinpack, Spread: keySpread, Topology: keyTopology}[word]
	}
	if err != nil {
		return NodePolicy{}, fmt.Errorf("%w (%s and %s are policies of GPUs)", err, NUMA, Mutex)
	}
	return p, nil
}

// Sums says that the score goes by what is used of all GPUs together: it is the same
// whichever GPUs a pod gets, as long as it takes the same of each.
func (p NodePolicy) Sums() bool { return !slices.Contains(p.keys[:], keyTopology) }

// Node is how good a node is for a pod: from 0 to MaxNodeScore, the higher the better.
// after is what of each GPU is used once the pod is on it, total what each has; both are
// in the same order. chosenLinks are the links of each pair of GPUs that one container
// gets (see PairLinks); none for containers of single GPUs.
//
//	binpack         the more of the node is used, the better
//	spread          the less
//	topology-aware  the better the pod's GPUs are connected; then the fewer idle GPUs are left: the
//	                smallest node that will do
//
// Of a chain each word has an equal part of the score's digits, so that a later one
// only decides where the earlier see (almost) no difference.
func Node(p NodePolicy, w Weights, after, total []scheduler.Use, chosenLinks ...int) int64 {
	if p.keys[0] == keyNone {
		p.keys[0] = keyBinpack
	}
	return nodeScore(p, w.orDefault(), after, total, chosenLinks)
}

func nodeScore(p NodePolicy, w Weights, after, total []scheduler.Use, chosenLinks []int) int64 {
	var part [4]int64 // 0..scoreUnit of each word
	n := 0
	for _, k := range p.keys {
		switch k {
		case keyBinpack:
			part[n] = usedPart(w, after, total)
			n++
		case keySpread:
			part[n] = scoreUnit - usedPart(w, after, total)
			n++
		case keyTopology:
			part[n], part[n+1] = linkPart(chosenLinks), smallPart(after)
			n += 2
		}
	}
	radix := [...]int64{MaxNodeScore + 1, MaxNodeScore + 1, 100, 21, 10}[n] // the largest whose n-th power fits
	score := int64(0)
	for _, x := range part[:n] {
		score = score*radix + min(x*radix/scoreUnit, radix-1)
	}
	return min(score, MaxNodeScore)
}

// usedPart is how much of the node is used.
func usedPart(w Weights, after, total []scheduler.Use) int64 {
	var used, all scheduler.Use
	for i, u := range after {
		used = used.Add(u)
		if i < len(total) {
			all = all.Add(total[i])
		}
	}
	return w.score(used, all) / (w.Slot + w.Core + w.Memory)
}

// Links of PCIe end at bestPCIe, those of NVLink (gpu.Pair: 18 links and the PCIe below) at
// bestLink.
const (
	bestPCIe = 60
	bestLink = 1860
)

// linkPart is how well the chosen GPUs are connected, on average: the lower half of the scale
// is PCIe's, the upper NVLink's, since 50 of PCIe would be nothing beside an NVSwitch's 1860. No
// pairs are equal everywhere.
func linkPart(links []int) int64 {
	if len(links) == 0 {
		return 0
	}
	sum := int64(0)
	for _, l := range links {
		sum += int64(max(0, min(l, bestLink)))
	}
	mean := sum * scoreUnit / int64(len(links)) // in scoreUnits, so that nothing is lost to rounding
	const half = scoreUnit / 2
	if mean <= bestPCIe*scoreUnit {
		return mean / (2 * bestPCIe)
	}
	return half + (mean-bestPCIe*scoreUnit)/(2*(bestLink-bestPCIe))
}

// smallPart is best for the node that has no idle GPU left; 16 and more are as bad.
func smallPart(after []scheduler.Use) int64 {
	idle := 0
	for _, u := range after {
		if u.Slots == 0 {
			idle++
		}
	}
	return scoreUnit - scoreUnit/16*int64(min(idle, 16))
}
