package choose

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Links by nvidia-smi's words, as gpu.Pair scores them.
const (
	sys = 10 * (iota + 1)
	node
	phb
	pxb
	pix
	nv = 100 // each NVLink
)

// groups is a node with a tree of GPUs. The number of the innermost group of two GPUs sets their link:
// levels[k] is the link of GPUs with equal groups from k on.
func groups(levels []int, gpus ...[]int) [][]int {
	return matrix(len(gpus), func(i, j int) int {
		link := sys
		for k := len(levels) - 1; k >= 0; k-- {
			if gpus[i][k] != gpus[j][k] {
				break
			}
			link = levels[k]
		}
		return link
	})
}

// matrix is a symmetric matrix.
func matrix(m int, link func(i, j int) int) [][]int {
	links := make([][]int, m)
	for i := range links {
		links[i] = make([]int, m)
		for j := range i {
			links[i][j] = link(i, j)
			links[j][i] = links[i][j]
		}
	}
	return links
}

// sevenGPUs is GPU0-2 and GPU3-6, each on one switch, on one host bridge.
func sevenGPUs() [][]int {
	return groups([]int{pix, phb}, []int{0, 0}, []int{0, 0}, []int{0, 0}, []int{1, 0}, []int{1, 0}, []int{1, 0}, []int{1, 0})
}

// lonelyFirst is GPU0 across the sockets from the pair GPU1-2 (tke#226).
func lonelyFirst() [][]int {
	return matrix(3, func(i, j int) int {
		if i == 2 && j == 1 {
			return pix
		}
		return sys
	})
}

// lonelyLast is GPU2 across the sockets from the pair GPU0-1.
func lonelyLast() [][]int {
	return matrix(3, func(i, j int) int {
		if i == 1 && j == 0 {
			return pix
		}
		return sys
	})
}

// nvSwitch is a DGX A100 or H100: all GPUs are connected as well.
func nvSwitch(m, nvLinks int) [][]int {
	return matrix(m, func(i, j int) int { return sys + nvLinks*nv })
}

// dgx1V100 is its hybrid cube mesh, as `nvidia-smi topo -m` shows it.
func dgx1V100() [][]int {
	nvLinks := [8][8]int{
		{0, 1, 1, 2, 2, 0, 0, 0},
		{1, 0, 2, 1, 0, 2, 0, 0},
		{1, 2, 0, 2, 0, 0, 1, 0},
		{2, 1, 2, 0, 0, 0, 0, 1},
		{2, 0, 0, 0, 0, 1, 1, 2},
		{0, 2, 0, 0, 1, 0, 2, 1},
		{0, 0, 1, 0, 1, 2, 0, 2},
		{0, 0, 0, 1, 2, 1, 2, 0},
	}
	return matrix(8, func(i, j int) int {
		switch {
		case i/4 != j/4:
			return sys + nv*nvLinks[i][j]
		case i/2 != j/2:
			return phb + nv*nvLinks[i][j]
		}
		return pix + nv*nvLinks[i][j]
	})
}

// twoSockets is m GPUs in pairs on switches, half of them on each socket.
func twoSockets(m int) [][]int {
	return matrix(m, func(i, j int) int {
		switch {
		case i/2 == j/2:
			return pix
		case i/(m/2) == j/(m/2):
			return node
		}
		return sys
	})
}

// fourSwitches is 16 GPUs on four switches, two a socket.
func fourSwitches() [][]int {
	return matrix(16, func(i, j int) int {
		switch {
		case i/4 == j/4:
			return pix
		case i/8 == j/8:
			return phb
		}
		return sys
	})
}

// randomLinks has no structure at all, of so many different links.
func randomLinks(seed uint64, m, different int) [][]int {
	r := rand.New(rand.NewPCG(seed, 1))
	return matrix(m, func(i, j int) int { return sys * (1 + r.IntN(different)) })
}

// idle is m unused GPUs, half of them on each NUMA node.
func idle(m int) []Candidate {
	candidates := make([]Candidate, m)
	for i := range candidates {
		candidates[i] = Candidate{
			Position: i, NUMA: i / ((m + 1) / 2),
			Total: scheduler.Use{MemoryMiB: 81920, Cores: 100, Replicas: 10},
			Need:  scheduler.Use{MemoryMiB: 8192, Cores: 10, Replicas: 1},
		}
	}
	return candidates
}

// subsets are all sets of n of m GPUs, the lowest first.
func subsets(m, n int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		set := make([]int, n)
		for i := range set {
			set[i] = i
		}
		for {
			if !yield(slices.Clone(set)) {
				return
			}
			k := n - 1
			for k >= 0 && set[k] == m-n+k {
				k--
			}
			if k < 0 {
				return
			}
			set[k]++
			for l := k + 1; l < n; l++ {
				set[l] = set[l-1] + 1
			}
		}
	}
}
