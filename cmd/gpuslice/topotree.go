package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// branch is a part of the tree of a node's cards: a group of cards that are as near to
// each other as its level says, or one card.
type branch struct {
	// Level is that of a group: each card reaches each other by connections of at least
	// that level. Empty of a card, and where nothing is known.
	Level string `json:"level,omitempty"`
	Cards int    `json:"cards"`
	// Free are the cards that nothing is granted of.
	Free int `json:"free"`
	// NVLinks is how many links each pair of a group has at least.
	NVLinks  int       `json:"nvlinks,omitempty"`
	Children []branch  `json:"children,omitempty"`
	Card     *leafCard `json:"card,omitempty"`
}

// leafCard is one card of the tree.
type leafCard struct {
	view.Card
	// Use is one of the words useFree to useUnhealthy.
	Use  string `json:"use"`
	NUMA int    `json:"numaNode"`
	// Links are the cards that it has NVLinks to, by their index: how many.
	Links map[int]int `json:"nvlinksTo,omitempty"`
	MIG   []view.Card `json:"mig,omitempty"`
}

// treeOf makes the tree. Its root is the whole node, also where that is one card.
func treeOf(n view.Node, f node.File) branch {
	cards := leaves(n, f)
	indexes := make([]int, len(cards))
	for i := range indexes {
		indexes[i] = i
	}
	t := f.Topology
	b := group(cards, indexes, t, gpu.LevelSystem)
	if b.Card != nil {
		b = branch{Cards: 1, Free: b.Free, Children: []branch{b}}
	}
	if len(t.UUIDs) == 0 {
		b.Level = ""
	}
	return b
}

// group is the branch of some cards that are connected by a level. Levels at which they
// fall into no parts are passed over.
func group(cards []leafCard, members []int, t gpu.Topology, level gpu.Level) branch {
	if len(members) == 1 {
		c := cards[members[0]]
		b := branch{Cards: 1, Card: &c}
		if c.Use == useFree {
			b.Free = 1
		}
		return b
	}
	parts := [][]int{members}
	for level < gpu.LevelBoard {
		if parts = connected(cards, members, t, level+1); len(parts) > 1 {
			break
		}
		level++
	}
	if len(parts) == 1 { // as near as can be: each is a leaf
		parts = nil
		for _, m := range members {
			parts = append(parts, []int{m})
		}
	}
	b := branch{Level: level.String(), NVLinks: fewestLinks(cards, members, t)}
	for _, part := range parts {
		child := group(cards, part, t, level+1)
		b.Cards += child.Cards
		b.Free += child.Free
		b.Children = append(b.Children, child)
	}
	return b
}

// connected are the parts of some cards in which each reaches each other by
// connections of that level, in order of their first card.
func connected(cards []leafCard, members []int, t gpu.Topology, level gpu.Level) (parts [][]int) {
	seen := map[int]bool{}
	for _, first := range members {
		if seen[first] {
			continue
		}
		seen[first] = true
		part := []int{first}
		for i := 0; i < len(part); i++ {
			for _, m := range members {
				p, known := t.Pair(cards[part[i]].UUID, cards[m].UUID)
				if !seen[m] && known && p.Level >= level {
					seen[m] = true
					part = append(part, m)
				}
			}
		}
		slices.Sort(part)
		parts = append(parts, part)
	}
	return parts
}

// fewestLinks is the number of NVLinks that each pair has at least.
func fewestLinks(cards []leafCard, members []int, t gpu.Topology) int {
	fewest := -1
	for i, a := range members {
		for _, b := range members[:i] {
			p, _ := t.Pair(cards[a].UUID, cards[b].UUID)
			if fewest < 0 || p.NVLinks < fewest {
				fewest = p.NVLinks
			}
		}
	}
	return max(fewest, 0)
}

// The values of leafCard.Use.
const (
	useFree      = "free"
	useShared    = "shared"
	useFull      = "full"
	useBlocked   = "blocked"
	useCordoned  = "cordoned"
	useExcluded  = "excluded" // not offered
	useUnhealthy = "unhealthy"
)

// leaves are the node's cards by their index, with their MIG devices.
func leaves(n view.Node, f node.File) (cards []leafCard) {
	at := map[string]int{} // by UUID
	for _, c := range n.Cards {
		if c.MIGProfile == "" {
			at[c.UUID] = len(cards)
			l := leafCard{Card: c, NUMA: gpu.NUMAUnknown, Links: links(f, c.UUID)}
			if physical, known := f.Node.Card(c.UUID); known {
				l.NUMA = physical.NUMANode
			}
			cards = append(cards, l)
		} else if _, whole, known := f.Node.MIGDevice(c.UUID); known {
			if i, there := at[whole.UUID]; there {
				cards[i].MIG = append(cards[i].MIG, c)
			}
		}
	}
	blocks := blocksOf(n)
	for i := range cards {
		cards[i].Use = useOf(cards[i], blocks)
	}
	slices.SortStableFunc(cards, func(a, b leafCard) int { return cmp.Compare(a.Index, b.Index) })
	return cards
}

// blocksOf says of a device whether a container whose grant is not known keeps it.
func blocksOf(n view.Node) func(uuid string) bool {
	all, some := false, map[string]bool{}
	for _, c := range n.Containers {
		if c.State != string(grant.StateBlocking) {
			continue
		}
		all = all || len(c.Blocks) == 0
		for _, uuid := range c.Blocks {
			some[uuid] = true
		}
	}
	return func(uuid string) bool { return all || some[uuid] }
}

// useOf says what can be had of a card, and of its MIG devices together.
func useOf(c leafCard, blocked func(uuid string) bool) string {
	devices := []view.Card{c.Card}
	if len(c.MIG) > 0 {
		devices = c.MIG // the card itself is not to be had
	}
	granted, slots, full, held, cordoned := 0, 0, true, blocked(c.UUID), true
	for _, d := range devices {
		cordoned = cordoned && d.Cordoned
		granted += d.GrantedContainers
		slots += d.GrantableSlots
		full = full && isFull(d)
		held = held || blocked(d.UUID)
	}
	switch {
	case !c.Healthy:
		return useUnhealthy
	case held:
		return useBlocked
	case cordoned:
		return useCordoned
	case slots == 0:
		return useExcluded
	case granted == 0:
		return useFree
	case full:
		return useFull
	}
	return useShared
}

// isFull says whether nothing more can be granted of a device.
func isFull(c view.Card) bool {
	return c.GrantedContainers >= c.GrantableSlots || c.GrantedMemoryMiB >= c.GrantableMiB || c.GrantedCores >= c.GrantableCores
}

// links are the cards that a card has NVLinks to, by index.
func links(f node.File, uuid string) map[int]int {
	to := map[int]int{}
	for i, other := range f.Topology.UUIDs {
		if p, known := f.Topology.Pair(uuid, other); known && p.NVLinks > 0 {
			to[indexOf(f, other, i)] = p.NVLinks
		}
	}
	return to
}

// indexOf is a card's index, or its place in the topology where it isn't known any more.
func indexOf(f node.File, uuid string, place int) int {
	if c, known := f.Node.Card(uuid); known {
		return c.Index
	}
	return place
}

// linksText writes links for people: "NV18: 0-3,5; NV4: 4", the most first.
func linksText(to map[int]int) string {
	by := map[int][]int{}
	for card, n := range to {
		by[n] = append(by[n], card)
	}
	var counts []int
	for n := range by {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	slices.Reverse(counts)
	var parts []string
	for _, n := range counts {
		slices.Sort(by[n])
		parts = append(parts, fmt.Sprintf("NV%d: %s", n, ranges(by[n])))
	}
	return strings.Join(parts, "; ")
}

// ranges writes sorted numbers as the kernel does: "0-3,5".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
