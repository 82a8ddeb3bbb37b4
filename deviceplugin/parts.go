package deviceplugin

import (
	"cmp"
	"maps"
	"slices"
)

// preferParts chooses parts of as few GPUs as possible: the policy selects among GPUs that have
// enough, otherwise the emptiest is used up.
func preferParts(available, must []device, size int, policy Policy, links Links) ([]device, error) {
	if err := checkSize(available, must, size); err != nil {
		return nil, err
	}
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
	return chosen, nil
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
