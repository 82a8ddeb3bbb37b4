package choose

import (
	"math/bits"
	"slices"
	"strings"
)

// oracle returns what GPUs returns, from a comparison of all sets of n candidates by the rules in the package
// comment. It shares only the types with the code under test.
func oracle(words string, w Weights, bind bool, candidates []Candidate, links [][]int, n int) []int {
	chain := strings.Split(words, ",")
	if !slices.Contains(chain, Binpack) && !slices.Contains(chain, Spread) {
		chain = append(chain, Spread)
	}
	pool := uint(0)
	for i, c := range candidates {
		if !slices.Contains(chain, Mutex) || c.Used.Replicas == 0 {
			pool |= 1 << i
		}
	}
	var best uint
	var bestValue []int64
	for set := range uint(1) << len(candidates) {
		if bits.OnesCount(set) != n || set&^pool != 0 {
			continue
		}
		nodes, beside := numaOf(candidates, set, pool)
		if bind && nodes > 1 {
			continue
		}
		value := valueOf(chain, w, candidates, links, set, pool)
		if bind && n > 1 {
			value = append(value, -int64(beside))
		}
		value = append(value, int64(bits.Reverse(set)>>1)) // the lowest first
		if bestValue == nil || slices.Compare(value, bestValue) > 0 {
			best, bestValue = set, value
		}
	}
	var chosen []int
	for ; best != 0; best &= best - 1 {
		chosen = append(chosen, bits.TrailingZeros(best))
	}
	return chosen
}

func valueOf(chain []string, w Weights, candidates []Candidate, links [][]int, set, pool uint) []int64 {
	sum, worst, rest := int64(0), int64(1)<<40, int64(0)
	for i := range candidates {
		for j := range candidates {
			if set>>i&1 == 0 || i == j || pool>>j&1 == 0 || links == nil {
				continue
			}
			link := int64(links[candidates[i].Position][candidates[j].Position])
			rest -= link
			if set>>j&1 == 1 && i < j {
				sum, worst = sum+link, min(worst, link)
			}
		}
	}
	used := int64(0)
	for i, c := range candidates {
		if set>>i&1 == 1 {
			u := c.Used.Add(c.Need)
			used += w.Slot*(int64(u.Replicas)*1_000_000/int64(c.Total.Replicas)) + w.Core*(int64(u.Cores)*1_000_000/int64(c.Total.Cores)) +
				w.Memory*(u.MemoryMiB*1_000_000/c.Total.MemoryMiB)
		}
	}
	var value []int64
	single := bits.OnesCount(set) == 1
	for _, word := range chain {
		switch word {
		case Binpack:
			value = append(value, used)
		case Spread:
			value = append(value, -used)
		case NUMA:
			nodes, beside := numaOf(candidates, set, pool)
			value = append(value, -int64(nodes), -int64(beside))
		case Topology:
			if single {
				value = append(value, rest)
			} else {
				value = append(value, sum, worst)
			}
		}
	}
	if slices.Contains(chain, Topology) && !single {
		value = append(value, rest)
	}
	return value
}

// numaOf is how many NUMA nodes the set is on, and how many of the pool are on those.
func numaOf(candidates []Candidate, set, pool uint) (nodes, beside int) {
	on := map[int]bool{}
	for i, c := range candidates {
		if set>>i&1 == 1 {
			on[c.NUMA] = true
		}
	}
	for i, c := range candidates {
		if pool>>i&1 == 1 && on[c.NUMA] {
			beside++
		}
	}
	return len(on), beside
}
