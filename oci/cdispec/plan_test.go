package cdispec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

const (
	gpuA = "GPU-11111111-1111-1111-1111-111111111111"
	gpuB = "GPU-22222222-2222-2222-2222-222222222222"
)

// GPUs are two of 16 GiB.
func gpus() map[string]grant.GPU {
	all := map[string]grant.GPU{}
	for _, uuid := range []string{gpuA, gpuB} {
		all[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 16384, CorePercent: 100, Replicas: 10}
	}
	return all
}

func amount(gib int64) request.Slice {
	return request.Slice{Amount: request.Amount{Memory: request.Size{MiB: gib * 1024}, CorePercent: 25}}
}

func config(slices map[string]request.Slice) request.Config {
	c := request.DefaultConfig()
	c.Slices = slices
	c.Indices = map[string]string{gpuA: "0", gpuB: "1"}
	return c
}

// memory is what a plan takes of each GPU.
func memory(planned []Planned) map[string]int64 {
	taken := map[string]int64{}
	for _, p := range planned {
		for _, s := range p.Shares {
			taken[s.UUID] += s.MemoryMiB
		}
	}
	return taken
}

func TestPlan(t *testing.T) {
	pinned := amount(8)
	pinned.Devices = request.Devices{Names: []string{"1"}}
	both := amount(4)
	both.Devices = request.Devices{All: true}
	for _, test := range []struct {
		name   string
		slices map[string]request.Slice
		want   []string         // the slices that are planned
		taken  map[string]int64 // nil: of no matter
		errs   []string
	}{
		{name: "none"},
		{name: "one", slices: map[string]request.Slice{"a": amount(8)}, want: []string{"a"}},
		{
			name:   "together they fit",
			slices: map[string]request.Slice{"a": amount(16), "b": amount(8), "c": amount(8)},
			want:   []string{"a", "b", "c"}, taken: map[string]int64{gpuA: 16384, gpuB: 16384},
		},
		{name: "more than fit are planned all the same", slices: map[string]request.Slice{"a": amount(16), "b": amount(16), "c": amount(16)}, want: []string{"a", "b", "c"}},
		{name: "on a GPU by its index", slices: map[string]request.Slice{"a": pinned}, want: []string{"a"}, taken: map[string]int64{gpuB: 8192}},
		{name: "on all GPUs", slices: map[string]request.Slice{"a": both}, want: []string{"a"}, taken: map[string]int64{gpuA: 4096, gpuB: 4096}},
		{
			name:   "one that fits nowhere does not affect the others",
			slices: map[string]request.Slice{"a": amount(4), "huge": amount(17)},
			want:   []string{"a"}, errs: []string{"slice huge"},
		},
		{name: "a name that CDI doesn't know", slices: map[string]request.Slice{"-a": amount(4)}, errs: []string{"slice -a", "CDI device"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			planned, err := Plan(config(test.slices), gpus(), nil)
			if test.errs == nil {
				require.NoError(t, err)
			}
			for _, want := range test.errs {
				require.ErrorContains(t, err, want)
			}
			var names []string
			for _, p := range planned {
				names = append(names, p.Name)
				require.NoError(t, grant.CheckGPUs(p.Shares, gpus()))
			}
			require.Equal(t, test.want, names)
			if test.taken != nil {
				require.Equal(t, test.taken, memory(planned))
			}
		})
	}
}

func TestPlanMovesNothingThatIsThere(t *testing.T) {
	c := config(map[string]request.Slice{"b": amount(8)})
	first, err := Plan(c, gpus(), nil)
	require.NoError(t, err)
	there := map[string]slice.Slice{}
	other := map[string]string{gpuA: gpuB, gpuB: gpuA}[first[0].Shares[0].UUID]
	// Not where it would be placed now.
	there["b"] = slice.Slice{Name: "b", Definition: first[0].Definition, Shares: []grant.Share{{UUID: other, MemoryMiB: 8192, CorePercent: 25}}}

	c.Slices["a"] = amount(16) // by its name it would come first
	planned, err := Plan(c, gpus(), there)
	require.NoError(t, err)
	require.Equal(t, there["b"].Shares, planned[1].Shares)
	require.NotEqual(t, other, planned[0].Shares[0].UUID)

	t.Run("until its definition changes", func(t *testing.T) {
		c.Slices["b"] = amount(4)
		planned, err := Plan(c, gpus(), there)
		require.NoError(t, err)
		require.Equal(t, int64(4096), planned[1].Shares[0].MemoryMiB)
	})
	t.Run("until its GPU is gone", func(t *testing.T) {
		c := config(map[string]request.Slice{"b": amount(8)})
		left := gpus()
		delete(left, other)
		planned, err := Plan(c, left, there)
		require.NoError(t, err)
		require.NotEqual(t, other, planned[0].Shares[0].UUID)
	})
}
