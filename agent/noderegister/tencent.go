package noderegister

import (
	"slices"
	"strconv"
	"strings"
)

var (
	brands = []string{"NVIDIA", "Tesla", "GeForce", "Quadro", "GRID"}
	series = []string{"RTX", "GTX", "GT", "TITAN"}
)

// tencentModel is gpu-manager's name of a model, without brand, memory and board: "Tesla M40 24GB"
// is M40, "NVIDIA A100-SXM4-80GB" A100, "GeForce RTX 2080" RTX-2080.
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

func isPackage(word string) bool {
	word = strings.ToUpper(word)
	size, isSize := strings.CutSuffix(word, "GB")
	_, err := strconv.Atoi(size)
	return isSize && err == nil || word == "PCIE" || word == "NVL" || strings.HasPrefix(word, "SXM") || strings.HasPrefix(word, "HBM")
}
