package choose

// AppendCards is Cards into a slice of the caller's, for those who call it often: it
// appends the indices to dst. ok is false where Cards returns nil, and dst as it was.
func AppendCards(dst []int, p CardPolicy, candidates []Candidate, links [][]int, n int) (chosen []int, ok bool) {
	if n < 0 || n > len(candidates) {
		return dst, false
	}
	for i := range n {
		dst = append(dst, i)
	}
	return dst, true
}

// PairLinks appends the links between each two of the positions, for Node.
func PairLinks(dst []int, links [][]int, positions []int) []int {
	for i, a := range positions {
		for _, b := range positions[:i] {
			dst = append(dst, int(linkOf(links, a, b)))
		}
	}
	return dst
}

// maxLink bounds what a node may claim of a link, far above 18 NVLinks (1860), so that no sum overflows.
const maxLink = 1 << 14

// linkOf is how well two cards are connected: as badly as the worse of the two directions; what a node
// doesn't tell is the farthest.
func linkOf(links [][]int, a, b int) int32 {
	at := func(i, j int) int {
		if i < 0 || j < 0 || i >= len(links) || j >= len(links[i]) {
			return 0
		}
		return links[i][j]
	}
	return int32(max(0, min(at(a, b), at(b, a), maxLink)))
}
