package choose

// maxLink bounds what a node may claim of a link, far above 18 NVLinks (1860), so that
// no sum overflows.
const maxLink = 1 << 14

// linkOf is how well two GPUs are connected: as badly as the worse of the two
// directions. What a node doesn't tell is the farthest, never an error.
func link(links [][]int, a, b int) int32 {
	return max(0, min(cell(links, a, b), cell(links, b, a)))
}

func cell(links [][]int, i, j int) int32 {
	if uint(i) >= uint(len(links)) || uint(j) >= uint(len(links[i])) {
		return 0
	}
	return int32(max(0, min(links[i][j], maxLink)))
}

// PairLinks appends the links between each two of the positions, for Node.
func PairLinks(dst []int, links [][]int, positions []int) []int {
	for i, a := range positions {
		for _, b := range positions[:i] {
			dst = append(dst, int(link(links, a, b)))
		}
	}
	return dst
}
