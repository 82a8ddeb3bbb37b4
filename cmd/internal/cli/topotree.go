package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// branch is a part of the tree of GPUs: a group of connected GPUs, or one GPU.
type branch struct {
	// Level is the farthest connection within a group. Empty for a GPU, and if not known.
	Level string `json:"level,omitempty"`
	GPUs  int    `json:"gpus"`
	// Free is the number of GPUs with no grant.
	Free int `json:"free"`
	// Unknown is the number of GPUs of which it is not known what is granted.
	Unknown int `json:"unknown,omitempty"`
	// NVLinks is the smallest number of links between two GPUs of a group.
	NVLinks  int      `json:"nvlinks,omitempty"`
	Children []branch `json:"children,omitempty"`
	GPU      *leafGPU `json:"gpu,omitempty"`
}

type leafGPU struct {
	view.GPU
	// Use is one of useFree to useUnknown.
	Use  string `json:"use"`
	NUMA int    `json:"numaNode"`
	// Links has the number of NVLinks by the other GPU's index.
	Links map[int]int `json:"nvlinksTo,omitempty"`
	MIG   []view.GPU  `json:"mig,omitempty"`
}

// treeOf returns the tree. Its root is the node, also with one GPU.
func treeOf(n view.Node, f gpusOf) branch {
	gpus := leaves(n, f)
	indexes := make([]int, len(gpus))
	for i := range indexes {
		indexes[i] = i
	}
	t := f.Topology
	b := group(gpus, indexes, t, hardware.LevelSystem)
	if b.GPU != nil {
		b = branch{GPUs: 1, Free: b.Free, Unknown: b.Unknown, Children: []branch{b}}
	}
	if len(t.UUIDs) == 0 {
		b.Level = ""
	}
	return b
}

// group returns the branch of GPUs that are connected at a level. It skips levels that do not divide them.
func group(gpus []leafGPU, members []int, t hardware.Topology, level hardware.Level) branch {
	if len(members) == 1 {
		c := gpus[members[0]]
		b := branch{GPUs: 1, GPU: &c}
		switch c.Use {
		case useFree:
			b.Free = 1
		case useUnknown:
			b.Unknown = 1
		}
		return b
	}
	parts := [][]int{members}
	for level < hardware.LevelBoard {
		if parts = connected(gpus, members, t, level+1); len(parts) > 1 {
			break
		}
		level++
	}
	if len(parts) == 1 { // no level divides them
		parts = nil
		for _, m := range members {
			parts = append(parts, []int{m})
		}
	}
	b := branch{Level: level.String(), NVLinks: fewestLinks(gpus, members, t)}
	for _, part := range parts {
		child := group(gpus, part, t, level+1)
		b.GPUs += child.GPUs
		b.Free += child.Free
		b.Unknown += child.Unknown
		b.Children = append(b.Children, child)
	}
	return b
}

// connected divides GPUs into parts that are connected at a level, in order of their first GPU.
func connected(gpus []leafGPU, members []int, t hardware.Topology, level hardware.Level) (parts [][]int) {
	seen := map[int]bool{}
	for _, first := range members {
		if seen[first] {
			continue
		}
		seen[first] = true
		part := []int{first}
		for i := 0; i < len(part); i++ {
			for _, m := range members {
				p, known := t.Pair(gpus[part[i]].UUID, gpus[m].UUID)
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

func fewestLinks(gpus []leafGPU, members []int, t hardware.Topology) int {
	fewest := -1
	for i, a := range members {
		for _, b := range members[:i] {
			p, _ := t.Pair(gpus[a].UUID, gpus[b].UUID)
			if fewest < 0 || p.NVLinks < fewest {
				fewest = p.NVLinks
			}
		}
	}
	return max(fewest, 0)
}

// The values of leafGPU.Use.
const (
	useFree      = "free"
	useShared    = "shared"
	useFull      = "full"
	useBlocked   = "blocked"
	useCordoned  = "cordoned"
	useExcluded  = "excluded" // not offered
	useUnhealthy = "unhealthy"
	useUnknown   = "unknown" // tables have "-"
)

func leaves(n view.Node, f gpusOf) (gpus []leafGPU) {
	at := map[string]int{} // by UUID
	for _, c := range n.GPUs {
		if c.MIGProfile == "" {
			at[c.UUID] = len(gpus)
			l := leafGPU{GPU: c, NUMA: hardware.NUMAUnknown, Links: links(f, c.UUID)}
			if physical, known := f.Node.GPU(c.UUID); known {
				l.NUMA = physical.NUMANode
			}
			gpus = append(gpus, l)
		} else if _, whole, known := f.Node.MIGDevice(c.UUID); known {
			if i, there := at[whole.UUID]; there {
				gpus[i].MIG = append(gpus[i].MIG, c)
			}
		}
	}
	blocks := blocksOf(n)
	for i := range gpus {
		gpus[i].Use = useOf(gpus[i], blocks)
	}
	slices.SortStableFunc(gpus, func(a, b leafGPU) int { return cmp.Compare(a.Index, b.Index) })
	return gpus
}

// blocksOf returns a function that reports whether a container with an unknown grant blocks a device.
func blocksOf(n view.Node) func(uuid string) bool {
	all, some := false, map[string]bool{}
	for _, c := range n.Containers {
		if c.State != api.StateBlocking {
			continue
		}
		all = all || len(c.Blocks) == 0
		for _, uuid := range c.Blocks {
			some[uuid] = true
		}
	}
	return func(uuid string) bool { return all || some[uuid] }
}

// useOf returns the use of a GPU, or of its MIG devices together.
func useOf(c leafGPU, blocked func(uuid string) bool) string {
	devices := []view.GPU{c.GPU}
	if len(c.MIG) > 0 {
		devices = c.MIG // only they can be granted
	}
	granted, replicas, full, isBlocked, cordoned := 0, 0, true, blocked(c.UUID), true
	for _, d := range devices {
		cordoned = cordoned && d.Cordoned
		granted += d.GrantedContainers
		replicas += d.GrantableReplicas
		full = full && isFull(d)
		isBlocked = isBlocked || blocked(d.UUID)
	}
	switch {
	case !c.Healthy:
		return useUnhealthy
	case isBlocked:
		return useBlocked
	case cordoned:
		return useCordoned
	case replicas == 0:
		return useExcluded
	case c.GrantsUnknown:
		return useUnknown
	case granted == 0:
		return useFree
	case full:
		return useFull
	}
	return useShared
}

func isFull(c view.GPU) bool {
	return c.GrantedContainers >= c.GrantableReplicas || c.GrantedMemoryMiB >= c.GrantableMiB || c.GrantedCores >= c.GrantableCores
}

func links(f gpusOf, uuid string) map[int]int {
	to := map[int]int{}
	for i, other := range f.Topology.UUIDs {
		if p, known := f.Topology.Pair(uuid, other); known && p.NVLinks > 0 {
			to[indexOf(f, other, i)] = p.NVLinks
		}
	}
	return to
}

// indexOf returns a GPU's index, or its place in the topology if node.json has no such GPU.
func indexOf(f gpusOf, uuid string, place int) int {
	if c, known := f.Node.GPU(uuid); known {
		return c.Index
	}
	return place
}

// linksText formats links, most first: "NV18: 0-3,5; NV4: 4".
func linksText(to map[int]int) string {
	by := map[int][]int{}
	for gpu, n := range to {
		by[n] = append(by[n], gpu)
	}
	var parts []string
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(by))) {
		parts = append(parts, fmt.Sprintf("NV%d: %s", n, cpuset.New(by[n]...))) // the format of CPU lists
	}
	return strings.Join(parts, "; ")
}
