package quota

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func share(uuid string, mib int64, cores int) grant.Share {
	return grant.Share{UUID: uuid, MemoryMiB: mib, CorePercent: cores}
}

func TestOf(t *testing.T) {
	const a, b = "GPU-a", "GPU-b"
	for _, test := range []struct {
		description string
		kinds       []scheduler.Kind
		shares      [][]grant.Share
		want        Charge
	}{
		{"nothing", []scheduler.Kind{scheduler.App}, [][]grant.Share{nil}, Charge{}},
		{"fewer shares than containers", []scheduler.Kind{scheduler.App}, nil, Charge{}},
		{"count × amount", []scheduler.Kind{scheduler.App}, [][]grant.Share{{share(a, 1000, 30), share(b, 1000, 30)}}, Charge{MemoryMiB: 2000, Cores: 60, GPUPercent: 60}},
		{"containers run together", []scheduler.Kind{scheduler.App, scheduler.App}, [][]grant.Share{{share(a, 1000, 10)}, {share(b, 2000, 20)}},
			Charge{MemoryMiB: 3000, Cores: 30, GPUPercent: 30}},
		{"an init container runs before them, on whichever GPU", []scheduler.Kind{scheduler.Init, scheduler.App}, [][]grant.Share{{share(a, 5000, 10)}, {share(b, 2000, 20)}},
			Charge{MemoryMiB: 5000, Cores: 20, GPUPercent: 20}},
		{"a sidecar beside those after it", []scheduler.Kind{scheduler.Init, scheduler.Sidecar, scheduler.Init, scheduler.App},
			[][]grant.Share{{share(a, 3000, 1)}, {share(a, 1000, 5)}, {share(b, 2500, 1)}, {share(a, 2000, 1)}}, Charge{MemoryMiB: 3500, Cores: 6, GPUPercent: 6}},
		{"cores that aren't limited: a part of the GPU by its memory, rounded up", []scheduler.Kind{scheduler.App}, [][]grant.Share{{share(a, 2501, 0)}},
			Charge{MemoryMiB: 2501, GPUPercent: 26}},
		{"of a GPU that isn't known: all of it", []scheduler.Kind{scheduler.App}, [][]grant.Share{{share("GPU-x", 1, 0)}}, Charge{MemoryMiB: 1, GPUPercent: 100}},
	} {
		t.Run(test.description, func(t *testing.T) {
			test.want.Model = "M40"
			got := Of(test.kinds, test.shares, "M40", func(uuid string) int64 { return map[string]int64{a: 10000, b: 10000}[uuid] })
			assert.Equal(t, test.want, got)
		})
	}
}

// The charge of a request is that of any of its placements, on GPUs
// of that size, and never more than that on others.
func TestRequestedEqualsCharge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpuMiB := rapid.Int64Range(1000, 100_000).Draw(t, "gpu")
		r := &request.Request{}
		var shares [][]grant.Share
		for range rapid.IntRange(1, 4).Draw(t, "containers") {
			kind := rapid.SampledFrom([]scheduler.Kind{scheduler.App, scheduler.Init, scheduler.Sidecar}).Draw(t, "kind")
			c := request.Container{GPUs: rapid.IntRange(0, 3).Draw(t, "gpus"), Cores: rapid.SampledFrom([]int{0, 1, 50, 100}).Draw(t, "cores")}
			if rapid.Bool().Draw(t, "by percent") {
				c.MemoryPercent = rapid.IntRange(1, 100).Draw(t, "percent")
			} else {
				c.MemoryMiB = rapid.Int64Range(1, 2000).Draw(t, "memory")
			}
			if c.GPUs == 0 {
				c = request.Container{}
			}
			var given []grant.Share
			first := rapid.IntRange(0, 3).Draw(t, "the first GPU")
			for i := range c.GPUs {
				given = append(given, share(fmt.Sprint((first+i)%4), c.Memory(gpuMiB), c.Cores))
			}
			r.Containers, r.Kinds = append(r.Containers, c), append(r.Kinds, kind)
			shares = append(shares, given)
		}
		charged := Of(r.Kinds, shares, "m", func(string) int64 { return gpuMiB })
		require.Equal(t, charged, Requested(r, "m", gpuMiB))
		least := Requested(r, "m", 0)
		require.True(t, least.MemoryMiB <= charged.MemoryMiB && least.Cores == charged.Cores && least.GPUPercent <= charged.GPUPercent, "%+v %+v", least, charged)
	})
}

func TestFromHard(t *testing.T) {
	factor := request.DefaultOptions()
	factor.MemoryFactor = 1024
	other := request.DefaultOptions()
	other.Names.Memory, other.Names.Cores = "", "example.com/cores"
	amount := func(n int64) scheduler.Amount { return scheduler.Amount{Value: n} }
	for _, test := range []struct {
		description string
		options     request.Options
		hard        map[string]scheduler.Amount
		want        Limits
		fails       string
	}{
		{"nothing", request.DefaultOptions(), map[string]scheduler.Amount{"pods": amount(5), "nvidia.com/gpumem": amount(5), "limits.nvidia.com/gpu": amount(2)}, NoLimits, ""},
		{"limits", request.DefaultOptions(), map[string]scheduler.Amount{"limits.nvidia.com/gpumem": amount(9000), "limits.nvidia.com/gpucores": amount(150)}, Limits{9000, 150}, ""},
		{"requests", request.DefaultOptions(), map[string]scheduler.Amount{"requests.nvidia.com/gpumem": amount(9000)}, Limits{9000, Unlimited}, ""},
		{"both", request.DefaultOptions(), map[string]scheduler.Amount{"requests.nvidia.com/gpumem": amount(9000), "limits.nvidia.com/gpumem": amount(8000)}, Limits{8000, Unlimited}, ""},
		{"none of it", request.DefaultOptions(), map[string]scheduler.Amount{"limits.nvidia.com/gpumem": amount(0)}, Limits{0, Unlimited}, ""},
		{"in units", factor, map[string]scheduler.Amount{"limits.nvidia.com/gpumem": amount(9), "limits.nvidia.com/gpucores": amount(9)}, Limits{9216, 9}, ""},
		{"in units, without end", factor, map[string]scheduler.Amount{"limits.nvidia.com/gpumem": amount(1 << 60)}, NoLimits, ""},
		{"other names", other, map[string]scheduler.Amount{"limits.": amount(1), "limits.nvidia.com/gpumem": amount(1), "limits.example.com/cores": amount(7)}, Limits{Unlimited, 7}, ""},
		{"no number", request.DefaultOptions(), map[string]scheduler.Amount{"limits.nvidia.com/gpumem": {Invalid: "1500m is no whole number"}, "limits.nvidia.com/gpucores": amount(7)},
			Limits{0, 7}, "limits.nvidia.com/gpumem: 1500m is no whole number: must be"},
		{"negative", request.DefaultOptions(), map[string]scheduler.Amount{"requests.nvidia.com/gpucores": amount(-1), "limits.nvidia.com/gpucores": amount(7)},
			Limits{Unlimited, 0}, "requests.nvidia.com/gpucores: -1: must be an integer of at least 0"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := FromHard(test.hard, test.options)
			assert.Equal(t, test.want, got)
			if test.fails == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.fails)
		})
	}
}

func TestParseGPUsRefuses(t *testing.T) {
	for _, test := range []struct{ description, value, want string }{
		{"empty", "", "invalid JSON: EOF"},
		{"cut short", `{"a":{`, "invalid JSON"},
		{"an array", `[]`, "invalid JSON"},
		{"two", `{}{}`, "data after the JSON"},
		{"half a GPU", `{"a":{"quota":{"M40":0.5}}}`, "invalid JSON"},
		{"less than none", `{"a":{"quota":{"M40":-1}}}`, `namespace "a": model "M40": -1 GPUs: must be from 0`},
		{"more than there can be", `{"a":{"quota":{"M40":4294967296}}}`, "4294967296 GPUs"},
		{"a misspelt field", `{"a":{"pools":["x"]}}`, `unknown field "pools"`},
		{"null", `{"a":null}`, `namespace "a": null: omit the namespace if it is not limited`},
		{"null for all", `null`, "null"},
		{"too long", strings.Repeat(" ", 1<<20+1), "more than the limit of 1048576"},
		{"a name without end", `{"a":{"` + strings.Repeat("x", 1<<16) + `":1}}`, "unknown field"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := ParseGPUs(test.value)
			require.ErrorContains(t, err, "quota gpu_quota: ")
			require.ErrorContains(t, err, test.want)
			assert.Less(t, len(err.Error()), 400)
			assert.Nil(t, got)
		})
	}
}

func FuzzParseGPUs(f *testing.F) {
	f.Add(`{"A":{"pool":["public"],"quota":{"M40":2,"P100":3}},"B":{"quota":{}}}`)
	f.Add(`{"A":null}`)
	f.Fuzz(func(t *testing.T, value string) {
		gpus, err := ParseGPUs(value)
		if err != nil {
			require.Nil(t, gpus)
			return
		}
		book := NewAccounts()
		book.SetGPUs(gpus)
		for namespace, allowed := range gpus.namespaces {
			account := book.Account(namespace)
			require.True(t, account.Limited())
			for model, n := range allowed.Models {
				labels := map[string]string{api.LabelTencentModel: model}
				require.Error(t, account.CheckNode(labels, Charge{GPUPercent: int64(n)*100 + 1, Model: model}))
				if len(allowed.Pools) == 0 {
					require.NoError(t, account.CheckNode(labels, Charge{GPUPercent: int64(n) * 100, Model: model}))
				}
			}
		}
	})
}
