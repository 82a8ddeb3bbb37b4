package noderegister

import (
	"slices"
	"strconv"
	"strings"
)

// Words that a GPU's name may begin with.
var (
	brands = []string{"NVIDIA", "Tesla", "GeForce", "Quadro", "GRID"} // say nothing of the model
	series = []string{"RTX", "GTX", "GT", "TITAN"}                    // are half of it
)

// tencentModel is a GPU's model in gpu-manager's words: without brand, memory and
// board. "Tesla M40 24GB" is M40, "NVIDIA H200" H200, "NVIDIA A100-SXM4-80GB" A100. A
// series belongs to the number after it: "GeForce RTX 2080" is RTX-2080.
func tencentModel(name string) string {
	words := strings.Fields(name)
	for len(words) > 1 && slices.ContainsFunc(brands, sameWord(words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	if slices.ContainsFunc(series, sameWord(words[0])) {
		for i, w := range words {
			if i > 0 && isPackage(w) {
				words = words[:i]
				break
			}
		}
		return labelValue(strings.Join(words, "-"))
	}
	model, _, _ := strings.Cut(words[0], "-")
	return labelValue(model)
}

func sameWord(word string) func(string) bool {
	return func(other string) bool { return strings.EqualFold(word, other) }
}

// isPackage says whether a word is a GPU's memory or its board.
func isPackage(word string) bool {
	word = strings.ToUpper(word)
	size, isSize := strings.CutSuffix(word, "GB")
	_, err := strconv.Atoi(size)
	return isSize && err == nil || word == "PCIE" || word == "NVL" || strings.HasPrefix(word, "SXM") || strings.HasPrefix(word, "HBM")
}
