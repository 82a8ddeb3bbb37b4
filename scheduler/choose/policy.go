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

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/scheduler"
)

const (
	Binpack  = "binpack"
	Spread   = "spread"
	Topology = "topology-aware"
	NUMA     = "numa"
	Mutex    = "mutex"
	// Tencent is the default for gpu-manager's resources.
	Tencent = "tencent"
)

// key is a word of a chain; mutex is a rule instead.
type key uint8

const (
	keyNone key = iota
	keyBinpack
	keySpread
	keyTopology
	keyNUMA
	keyTencent
)

var keyWords = [...]string{keyBinpack: Binpack, keySpread: Spread, keyTopology: Topology, keyNUMA: NUMA, keyTencent: Tencent}

func keyOf(word string) key { return key(slices.Index(keyWords[:], word)) }

const maxKeys = 6

// GPUPolicy selects a node's GPUs. The zero value is HAMi's default: spread with equal weights.
type GPUPolicy struct {
	keys [maxKeys]key // up to the first keyNone
	// Mutex: only unused GPUs may be chosen.
	Mutex bool
	// NUMABind: a container's GPUs have to be on one NUMA node.
	NUMABind bool
	Weights  Weights
}

// ParseGPUPolicy reads a chain such as "numa,binpack"; empty: the default.
func ParseGPUPolicy(text string) (GPUPolicy, error) {
	var p GPUPolicy
	words, err := parseChain(text, "GPU policy", Binpack, Spread, Topology, NUMA, Mutex, Tencent)
	if err != nil {
		return p, err
	}
	n := 0
	for _, word := range words {
		if word == Mutex {
			p.Mutex = true
			continue
		}
		p.keys[n] = keyOf(word)
		n++
	}
	if n > 1 && p.has(keyTencent) {
		return GPUPolicy{}, fmt.Errorf("GPU policy %q: %s can only be combined with %s", text, Tencent, Mutex)
	}
	return p, nil
}

func (p *GPUPolicy) has(k key) bool { return slices.Contains(p.keys[:], k) }

// parseChain returns the distinct words; none for an empty text.
func parseChain(text, what string, known ...string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var words []string
	for part := range strings.SplitSeq(text, ",") {
		word := strings.TrimSpace(part)
		if !slices.Contains(known, word) {
			return nil, fmt.Errorf("%s %q: unknown policy %q: use one or more of %s, separated by commas",
				what, text, word, strings.Join(known, ", "))
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words, nil
}

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

// Weights weigh replicas, cores and memory in the use of a GPU or node. The zero value is HAMi's default:
// equal.
type Weights struct {
	Slot, Core, Memory int64
}

const maxWeight = 1_000_000

// ParseWeights reads HAMi's annotation hami.io/device-scoring-weights: "slot=1,core=1,memory=3". Empty: the
// default.
func ParseWeights(text string) (Weights, error) {
	var w Weights
	if strings.TrimSpace(text) == "" {
		return w, nil
	}
	fail := func(reason string) (Weights, error) {
		return Weights{}, fmt.Errorf("weights %q: %s: use slot=1,core=1,memory=3, with integers from 0 to %d, not all zero",
			text, reason, maxWeight)
	}
	fields := map[string]*int64{"slot": &w.Slot, "core": &w.Core, "memory": &w.Memory}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		value, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		switch {
		case err != nil || value < 0 || value > maxWeight:
			return fail(fmt.Sprintf("%q: invalid number", strings.TrimSpace(part)))
		case fields[name] == nil:
			return fail(fmt.Sprintf("unknown name %q", name))
		case seen[name]:
			return fail(name + " is specified more than once")
		}
		*fields[name], seen[name] = value, true
	}
	for _, name := range []string{"slot", "core", "memory"} {
		if !seen[name] {
			return fail(name + " is missing")
		}
	}
	if w == (Weights{}) {
		return fail("all are zero")
	}
	return w, nil
}

func (w Weights) orDefault() Weights {
	if w == (Weights{}) {
		return Weights{1, 1, 1}
	}
	return w
}

// scoreUnit is the score of full use per weight.
const scoreUnit = 1_000_000

// score is the weighted use, in integers to be equal on every machine.
func (w Weights) score(used, total scheduler.Use) int64 {
	return w.Slot*part(int64(used.Replicas), int64(total.Replicas)) +
		w.Core*part(int64(used.Cores), int64(total.Cores)) +
		w.Memory*part(used.MemoryMiB, total.MemoryMiB)
}

// part is used/total in scoreUnits; 0 if there is no total.
func part(used, total int64) int64 {
	switch {
	case used <= 0 || total <= 0:
		return 0
	case used >= total:
		return scoreUnit
	case used < 1<<40: // except for absurd claims of a node
		return used * scoreUnit / total
	}
	hi, lo := bits.Mul64(uint64(used), scoreUnit)
	quotient, _ := bits.Div64(hi, lo, uint64(total)) // hi < total, since used < total
	return int64(quotient)
}

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
