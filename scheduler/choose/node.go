package choose

import (
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

const MaxNodeScore = 10000

// NodePolicy compares nodes. The zero value is HAMi's default, binpack.
type NodePolicy struct {
	keys [3]key // up to the first keyNone
}

// ParseNodePolicy reads HAMi's annotation hami.io/node-scheduler-policy: a chain of binpack, spread and
// topology-aware; empty: the default.
func ParseNodePolicy(text string) (NodePolicy, error) {
	var p NodePolicy
	words, err := parseChain(text, "node policy", Binpack, Spread, Topology)
	for i, word := range words {
		p.keys[i] = keyOf(word)
	}
	if err != nil {
		return NodePolicy{}, fmt.Errorf("%w (%s and %s are GPU policies)", err, NUMA, Mutex)
	}
	return p, nil
}

// Sums: the score depends only on the sums over all GPUs.
func (p NodePolicy) Sums() bool { return !slices.Contains(p.keys[:], keyTopology) }

// Node scores a node from 0 to MaxNodeScore. after is the use of each GPU with the pod; chosenLinks are
// from PairLinks, for containers with several GPUs.
//
//	binpack         more use is better
//	spread          less use is better
//	topology-aware  better links are better, then fewer idle GPUs
//
// Each word of a chain has an equal part of the score's digits, so that later words only break ties.
func Node(p NodePolicy, w Weights, after, total []scheduler.Use, chosenLinks ...int) int64 {
	if p.keys[0] == keyNone {
		p.keys[0] = keyBinpack
	}
	w = w.orDefault()
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
	radix := [...]int64{MaxNodeScore + 1, MaxNodeScore + 1, 100, 21, 10}[n] // the largest with an n-th power that fits
	score := int64(0)
	for _, x := range part[:n] {
		score = score*radix + min(x*radix/scoreUnit, radix-1)
	}
	return min(score, MaxNodeScore)
}

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

// The best links of PCIe and of NVLink (gpu.Pair: 18 links plus PCIe).
const (
	bestPCIe = 60
	bestLink = 1860
)

// linkPart is the mean link: the lower half of the scale is for PCIe, the upper for NVLink, because 60
// would disappear next to 1860.
func linkPart(links []int) int64 {
	if len(links) == 0 {
		return 0
	}
	sum := int64(0)
	for _, l := range links {
		sum += int64(max(0, min(l, bestLink)))
	}
	mean := sum * scoreUnit / int64(len(links)) // in scoreUnits, to keep precision
	const half = scoreUnit / 2
	if mean <= bestPCIe*scoreUnit {
		return mean / (2 * bestPCIe)
	}
	return half + (mean-bestPCIe*scoreUnit)/(2*(bestLink-bestPCIe))
}

// smallPart prefers nodes with few idle GPUs; 16 and more are equal.
func smallPart(after []scheduler.Use) int64 {
	idle := 0
	for _, u := range after {
		if u.Replicas == 0 {
			idle++
		}
	}
	return scoreUnit - scoreUnit/16*int64(min(idle, 16))
}
