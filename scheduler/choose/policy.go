package choose

import (
	"fmt"
	"slices"
	"strings"
)

const (
	Binpack  = "binpack"
	Spread   = "spread"
	Topology = "topology-aware"
	NUMA     = "numa"
	Mutex    = "mutex"
	// Tencent is the default for gpu-manager's resources.
	Tencent = "tencent"
)

// key is a word of a chain; mutex is a rule instead.
type key uint8

const (
	keyNone key = iota
	keyBinpack
	keySpread
	keyTopology
	keyNUMA
	keyTencent
)

var keyWords = [...]string{keyBinpack: Binpack, keySpread: Spread, keyTopology: Topology, keyNUMA: NUMA, keyTencent: Tencent}

func keyOf(word string) key { return key(slices.Index(keyWords[:], word)) }

const maxKeys = 6

// GPUPolicy selects a node's GPUs. The zero value is HAMi's default: spread with equal weights.
type GPUPolicy struct {
	keys [maxKeys]key // up to the first keyNone
	// Mutex: only unused GPUs may be chosen.
	Mutex bool
	// NUMABind: a container's GPUs have to be on one NUMA node.
	NUMABind bool
	Weights  Weights
}

// ParseGPUPolicy reads a chain such as "numa,binpack"; empty: the default.
func ParseGPUPolicy(text string) (GPUPolicy, error) {
	var p GPUPolicy
	words, err := parseChain(text, "GPU policy", Binpack, Spread, Topology, NUMA, Mutex, Tencent)
	if err != nil {
		return p, err
	}
	n := 0
	for _, word := range words {
		if word == Mutex {
			p.Mutex = true
			continue
		}
		p.keys[n] = keyOf(word)
		n++
	}
	if n > 1 && p.has(keyTencent) {
		return GPUPolicy{}, fmt.Errorf("GPU policy %q: %s can only be combined with %s", text, Tencent, Mutex)
	}
	return p, nil
}

func (p *GPUPolicy) has(k key) bool { return slices.Contains(p.keys[:], k) }

// parseChain returns the distinct words; none for an empty text.
func parseChain(text, what string, known ...string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var words []string
	for part := range strings.SplitSeq(text, ",") {
		word := strings.TrimSpace(part)
		if !slices.Contains(known, word) {
			return nil, fmt.Errorf("%s %q: unknown policy %q: use one or more of %s, separated by commas",
				what, text, word, strings.Join(known, ", "))
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words, nil
}
