package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Policy is how devices are chosen where several would do.
type Policy string

// The policies.
const (
	// Packed fills the GPUs that are fullest, and leaves others whole.
	Packed Policy = "packed"
	// Spread takes the GPUs that are emptiest.
	Spread Policy = "spread"
	// InOrder takes the devices by their ids, as the kubelet does where a device plugin
	// has no preference.
	InOrder Policy = "in-order"
)

// Policies are those that an operator chooses from.
var Policies = []Policy{Packed, Spread}

// Links know how well GPUs are connected.
type Links interface {
	// Link is how well two GPUs are connected, by UUID; 0 is not known, more is better.
	Link(a, b string) int
}

// prefer chooses as many devices as size says, all that must be among them. Several
// are of as many GPUs as there are, for who asks for two replicas asks for two
// GPUs; of these, the best connected; of these, as the policy says.
func prefer(available, must []device, size int, policy Policy, links Links) ([]device, error) {
	if err := checkSize(available, must, size); err != nil {
		return nil, err
	}
	free := freeByGPU(available, must)
	fill := make(map[string]int, len(free)) // how many are free
	for uuid, devices := range free {
		fill[uuid] = len(devices)
	}

	// GPUs in the policy's order.
	gpus := slices.SortedFunc(maps.Keys(free), func(a, b string) int {
		byFill := cmp.Compare(fill[a], fill[b])
		if policy == Spread {
			byFill = -byFill
		}
		return cmp.Or(byFill, cmp.Compare(a, b))
	})

	c := chooser{gpus: gpus, free: free, links: links}
	if len(must) > 0 || links == nil || size == 1 {
		return c.choose(must, size), nil
	}
	// The first GPU decides how well the others are connected: each is tried.
	var best []device
	bestScore := 0
	for _, first := range gpus {
		chosen := c.choose(free[first][:1], size)
		if score := c.score(chosen); best == nil || score > bestScore {
			best, bestScore = chosen, score
		}
	}
	return best, nil
}

// inOrder adds the first devices to those that must be among them.
func inOrder(available, must []device, size int) ([]device, error) {
	if err := checkSize(available, must, size); err != nil {
		return nil, err
	}
	chosen := slices.Clone(must)
	for _, d := range slices.SortedFunc(slices.Values(available), device.compare) {
		if len(chosen) < size && !slices.Contains(must, d) {
			chosen = append(chosen, d)
		}
	}
	return chosen, nil
}

// checkSize refuses a number of devices that can't be chosen.
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

// chooser chooses among the free devices of GPUs, which are in the order in which
// they are wanted.
type chooser struct {
	gpus  []string
	free  map[string][]device
	links Links
}

// choose adds devices to the first ones until there are as many as size says. There
// are enough.
func (c chooser) choose(first []device, size int) []device {
	chosen := slices.Clone(first)
	taken := map[string]int{} // of each GPU
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

// linked is how well a GPU is connected to those that something was taken of.
func (c chooser) linked(uuid string, taken map[string]int) int {
	sum := 0
	for other := range taken {
		if c.links != nil && other != uuid {
			sum += c.links.Link(other, uuid)
		}
	}
	return sum
}

// score is how well the GPUs of the chosen devices are connected with each other.
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
