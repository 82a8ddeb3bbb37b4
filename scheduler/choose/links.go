package choose

// maxLink limits what a node may claim, far above 18 NVLinks (1860), to prevent overflow.
const maxLink = 1 << 14

// link is the worse of both directions; unknown links are 0.
func link(links [][]int, a, b int) int32 {
	return max(0, min(cell(links, a, b), cell(links, b, a)))
}

func cell(links [][]int, i, j int) int32 {
	if uint(i) >= uint(len(links)) || uint(j) >= uint(len(links[i])) {
		return 0
	}
	return int32(max(0, min(links[i][j], maxLink)))
}

// PairLinks appends the links of all pairs of positions, for Node.
func PairLinks(dst []int, links [][]int, positions []int) []int {
	for i, a := range positions {
		for _, b := range positions[:i] {
			dst = append(dst, int(link(links, a, b)))
		}
	}
	return dst
}
