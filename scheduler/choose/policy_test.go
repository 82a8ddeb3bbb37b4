package choose

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseGPUPolicy(t *testing.T) {
	for text, want := range map[string]string{
		"": Spread, "  ": Spread, "spread": "spread", " binpack ": "binpack", "numa, binpack": "numa,binpack",
		"topology-aware,mutex,numa": "mutex,topology-aware,numa", // mutex is a rule: its position has no meaning
		"binpack,spread,binpack":    "binpack,spread",
		"mutex":                     "mutex", "tencent": "tencent", "tencent,mutex": "mutex,tencent",
		"numa,topology-aware,mutex,binpack,spread": "mutex,numa,topology-aware,binpack,spread",
	} {
		p, err := ParseGPUPolicy(text)
		require.NoError(t, err, text)
		require.Equal(t, want, p.String(), text)
		again, err := ParseGPUPolicy(p.String())
		require.NoError(t, err)
		require.Equal(t, want, again.String())
	}
	for text, why := range map[string]string{
		"bin-pack":        `GPU policy "bin-pack": unknown policy "bin-pack": use one or more of binpack, spread, topology-aware, numa, mutex, tencent, separated by commas`,
		"Binpack":         `GPU policy "Binpack": unknown policy "Binpack": use one or more of binpack, spread, topology-aware, numa, mutex, tencent, separated by commas`,
		"numa,":           `GPU policy "numa,": unknown policy "": use one or more of binpack, spread, topology-aware, numa, mutex, tencent, separated by commas`,
		"tencent,binpack": `GPU policy "tencent,binpack": tencent can only be combined with mutex`,
	} {
		_, err := ParseGPUPolicy(text)
		require.EqualError(t, err, why)
	}
}

func TestParseNodePolicy(t *testing.T) {
	for _, text := range []string{"", "binpack", "spread", "topology-aware", "topology-aware, spread"} {
		_, err := ParseNodePolicy(text)
		require.NoError(t, err, text)
	}
	_, err := ParseNodePolicy("numa")
	require.EqualError(t, err, `node policy "numa": unknown policy "numa": use one or more of binpack, spread, topology-aware, separated by commas (numa and mutex are GPU policies)`)
}

func TestParseWeights(t *testing.T) {
	for text, want := range map[string]Weights{
		"": {}, "slot=1,core=1,memory=3": {1, 1, 3}, " memory = 3 , slot=0,core=0": {0, 0, 3}, "slot=1000000,core=0,memory=0": {1_000_000, 0, 0},
	} {
		w, err := ParseWeights(text)
		require.NoError(t, err, text)
		require.Equal(t, want, w, text)
	}
	for text, why := range map[string]string{
		"slot=1,core=1":                       "memory is missing",
		"slot=0,core=0,memory=0":              "all are zero",
		"slot=1,core=-1,memory=1":             `"core=-1": invalid number`,
		"slot=1,core=1.5,memory=1":            `"core=1.5": invalid number`,
		"slot=1,core=1000001,memory=1":        `"core=1000001": invalid number`,
		"slot=1,core,memory=1":                `"core": invalid number`,
		"slot=1,core=1,memory=1,":             `"": invalid number`,
		"slot=1,core=1,slot=2,memory=1":       "slot is specified more than once",
		"slot=1,core=1,memory=1,power=1":      `unknown name "power"`,
		"slot=1,core=99999999999999999999999": `"core=99999999999999999999999": invalid number`,
	} {
		_, err := ParseWeights(text)
		require.ErrorContains(t, err, "weights \""+text+"\": "+why+": use slot=1,core=1,memory=3, with integers from 0 to 1000000, not all zero")
	}
}

func (p GPUPolicy) WithWeights(w Weights) GPUPolicy {
	p.Weights = w
	return p
}

func (p GPUPolicy) WithNUMABind(bind bool) GPUPolicy {
	p.NUMABind = bind
	return p
}

// String formats the policy for ParseGPUPolicy, without weights and numa-bind.
func (p GPUPolicy) String() string {
	words := make([]string, 0, maxKeys)
	if p.Mutex {
		words = append(words, Mutex)
	}
	for _, k := range p.keys {
		if k != keyNone {
			words = append(words, keyWords[k])
		}
	}
	if len(words) == 0 {
		return Spread
	}
	return strings.Join(words, ",")
}

// However large the numbers are that a node claims.
func TestPartIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(1<<40-2, 1<<40+2), rapid.Int64Range(0, 100_000))
		used, total := number.Draw(t, "used"), number.Draw(t, "total")
		want := int64(0)
		if used > 0 && total > 0 {
			x := big.NewInt(min(used, total))
			want = x.Div(x.Mul(x, big.NewInt(scoreUnit)), big.NewInt(total)).Int64()
		}
		require.Equal(t, want, part(used, total))
	})
}

// Pods' annotations: what is read can be decided by, and what is refused is none.
func FuzzParsePolicies(f *testing.F) {
	f.Add("numa,binpack", "topology-aware,spread", "slot=1,core=1,memory=3")
	f.Add("mutex,tencent", "", "slot=1000000,core=0,memory=0")
	f.Add("binpack,binpack , spread", "numa", "slot=1")
	f.Fuzz(func(t *testing.T, gpus, nodes, weights string) {
		if p, err := ParseGPUPolicy(gpus); err != nil {
			require.Equal(t, GPUPolicy{}, p)
		}
		if p, err := ParseNodePolicy(nodes); err != nil {
			require.Equal(t, NodePolicy{}, p)
		}
		w, err := ParseWeights(weights)
		for _, n := range []int64{w.Slot, w.Core, w.Memory} {
			require.True(t, n >= 0 && n <= maxWeight)
			require.True(t, err == nil || n == 0)
		}
	})
}
