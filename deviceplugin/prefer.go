package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Policy selects among suitable devices.
type Policy string

const (
	// Packed uses the fullest GPUs.
	Packed Policy = "packed"
	// Spread uses the emptiest GPUs.
	Spread Policy = "spread"
	// InOrder uses the order of the ids, like the kubelet without a preference.
	InOrder Policy = "in-order"
)

// Policies are those that an operator can select.
var Policies = []Policy{Packed, Spread}

// prefer chooses size devices including must: on as many GPUs as possible (a request for two
// replicas is for two GPUs), then the best connected, then by policy.
func prefer(available, must []device, size int, policy Policy, links func(a, b string) int) []device {
	free := freeByGPU(available, must)
	fill := make(map[string]int, len(free))
	for uuid, devices := range free {
		fill[uuid] = len(devices)
	}

	gpus := slices.SortedFunc(maps.Keys(free), func(a, b string) int {
		byFill := cmp.Compare(fill[a], fill[b])
		if policy == Spread {
			byFill = -byFill
		}
		return cmp.Or(byFill, cmp.Compare(a, b))
	})

	c := chooser{gpus: gpus, free: free, links: links}
	if len(must) > 0 || links == nil || size == 1 {
		return c.choose(must, size)
	}
	// The result depends on the first GPU: try each.
	var best []device
	bestScore := 0
	for _, first := range gpus {
		chosen := c.choose(free[first][:1], size)
		if score := c.score(chosen); best == nil || score > bestScore {
			best, bestScore = chosen, score
		}
	}
	return best
}

func inOrder(available, must []device, size int) []device {
	chosen := slices.Clone(must)
	for _, d := range slices.SortedFunc(slices.Values(available), device.compare) {
		if len(chosen) < size && !slices.Contains(must, d) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

func checkSize(available, must []device, size int) error {
	total := len(must)
	for _, d := range available {
		if !slices.Contains(must, d) {
			total++
		}
	}
	if size < max(1, len(must)) || size > total {
		return fmt.Errorf("%d devices can't be chosen of %d, %d of which must be among them", size, total, len(must))
	}
	return nil
}

// chooser chooses among free devices of GPUs, which are in order of preference.
type chooser struct {
	gpus  []string
	free  map[string][]device
	links func(a, b string) int
}

func (c chooser) choose(first []device, size int) []device {
	chosen := slices.Clone(first)
	taken := map[string]int{}
	rest := maps.Clone(c.free)
	for _, d := range first {
		taken[d.uuid]++
		if free := rest[d.uuid]; len(free) > 0 && free[0] == d {
			rest[d.uuid] = free[1:]
		}
	}
	for len(chosen) < size {
		best, bestLink := "", 0
		for _, uuid := range c.gpus {
			if len(rest[uuid]) == 0 {
				continue
			}
			link := c.linked(uuid, taken)
			if best == "" || taken[uuid] < taken[best] || taken[uuid] == taken[best] && link > bestLink {
				best, bestLink = uuid, link
			}
		}
		chosen = append(chosen, rest[best][0])
		rest[best] = rest[best][1:]
		taken[best]++
	}
	return chosen
}

func (c chooser) linked(uuid string, taken map[string]int) int {
	sum := 0
	for other := range taken {
		if c.links != nil && other != uuid {
			sum += c.links(other, uuid)
		}
	}
	return sum
}

func (c chooser) score(chosen []device) int {
	sum := 0
	taken := map[string]int{}
	for _, d := range chosen {
		if taken[d.uuid]++; taken[d.uuid] == 1 {
			sum += c.linked(d.uuid, taken)
		}
	}
	return sum
}

// preferParts chooses parts of as few GPUs as possible: the policy selects among GPUs that have
// enough, otherwise the emptiest is used up.
func preferParts(available, must []device, size int, policy Policy, links func(a, b string) int) []device {
	free := freeByGPU(available, must)
	chosen := slices.Clone(must)
	taken := map[string]int{}
	for _, d := range must {
		taken[d.uuid]++
	}
	for len(chosen) < size {
		want := size - len(chosen)
		uuid := nextGPU(free, taken, want, policy, chooser{links: links})
		n := min(want, len(free[uuid]))
		chosen = append(chosen, free[uuid][:n]...)
		taken[uuid] += n
		delete(free, uuid)
	}
	return chosen
}

func nextGPU(free map[string][]device, taken map[string]int, want int, policy Policy, c chooser) string {
	return slices.MinFunc(slices.Collect(maps.Keys(free)), func(a, b string) int {
		has := func(uuid string) int { return min(len(free[uuid]), want) }
		fill := 0
		if has(a) == want && has(b) == want {
			if fill = cmp.Compare(len(free[a]), len(free[b])); policy == Spread {
				fill = -fill
			}
		}
		return cmp.Or(
			cmp.Compare(min(taken[b], 1), min(taken[a], 1)),
			cmp.Compare(has(b), has(a)),
			cmp.Compare(c.linked(b, taken), c.linked(a, taken)),
			fill,
			cmp.Compare(a, b))
	})
}

func freeByGPU(available, must []device) map[string][]device {
	free := map[string][]device{}
	for _, d := range slices.SortedFunc(slices.Values(available), device.compare) {
		if !slices.Contains(must, d) {
			free[d.uuid] = append(free[d.uuid], d)
		}
	}
	return free
}
