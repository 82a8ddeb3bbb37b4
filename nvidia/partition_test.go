package nvidia

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cut is a GPU in MIG mode with instances of these profiles.
func cut(index int, profiles ...string) GPU {
	c := GPU{UUID: fmt.Sprintf("GPU-%d", index), Index: index, MIGEnabled: true}
	for i, profile := range profiles {
		c.MIG = append(c.MIG, MIGDevice{UUID: fmt.Sprintf("MIG-%d-%d", index, i), GPU: c.UUID, Profile: profile})
	}
	return c
}

func TestPartition(t *testing.T) {
	whole := GPU{UUID: "GPU-9", Index: 9}
	type offered struct {
		gpus   []string
		single []string
		mixed  map[string][]string
		err    []string
	}
	tests := []struct {
		description string
		gpus        []GPU
		none        offered
		single      offered
		mixed       offered
	}{
		{
			"no GPU", nil, offered{}, offered{}, offered{},
		},
		{
			"no GPU in MIG mode", []GPU{whole},
			offered{gpus: []string{"GPU-9"}}, offered{gpus: []string{"GPU-9"}}, offered{gpus: []string{"GPU-9"}},
		},
		{
			"all alike", []GPU{cut(0, "1g.10gb", "1g.10gb"), cut(1, "1g.10gb")},
			offered{},
			offered{single: []string{"MIG-0-0", "MIG-0-1", "MIG-1-0"}},
			offered{mixed: map[string][]string{"mig-1g.10gb": {"MIG-0-0", "MIG-0-1", "MIG-1-0"}}},
		},
		{
			"a GPU without MIG among them", []GPU{cut(0, "1g.10gb"), whole},
			offered{gpus: []string{"GPU-9"}},
			offered{err: []string{"with 1g.10gb: GPU 0 (GPU-0)", "without MIG: GPU 9 (GPU-9)", "use the strategy mixed"}},
			offered{gpus: []string{"GPU-9"}, mixed: map[string][]string{"mig-1g.10gb": {"MIG-0-0"}}},
		},
		{
			"GPUs that differ", []GPU{cut(0, "1g.10gb"), cut(1, "2g.20gb"), cut(2, "1g.10gb")},
			offered{},
			offered{err: []string{"with 1g.10gb: GPU 0 (GPU-0), GPU 2 (GPU-2); with 2g.20gb: GPU 1 (GPU-1)"}},
			offered{mixed: map[string][]string{"mig-1g.10gb": {"MIG-0-0", "MIG-2-0"}, "mig-2g.20gb": {"MIG-1-0"}}},
		},
		{
			"one GPU of two profiles", []GPU{cut(0, "2g.20gb", "1g.10gb+me")},
			offered{},
			offered{err: []string{"with 1g.10gb+me and 2g.20gb: GPU 0 (GPU-0)"}},
			offered{mixed: map[string][]string{"mig-1g.10gb.me": {"MIG-0-1"}, "mig-2g.20gb": {"MIG-0-0"}}},
		},
		{
			"a GPU without instances among them", []GPU{cut(0, "1g.10gb"), cut(1)},
			offered{},
			offered{err: []string{"without instances: GPU 1 (GPU-1)"}},
			offered{mixed: map[string][]string{"mig-1g.10gb": {"MIG-0-0"}}},
		},
		{
			"no instances at all", []GPU{cut(0), cut(1)},
			offered{}, offered{err: []string{"without instances: GPU 0 (GPU-0), GPU 1 (GPU-1)"}}, offered{},
		},
	}
	uuids := func(p Partition) offered {
		var o offered
		for _, c := range p.GPUs {
			o.gpus = append(o.gpus, c.UUID)
		}
		for _, d := range p.Single {
			o.single = append(o.single, d.UUID)
		}
		for _, resource := range p.Resources() {
			if o.mixed == nil {
				o.mixed = map[string][]string{}
			}
			for _, d := range p.Mixed[resource] {
				o.mixed[resource] = append(o.mixed[resource], d.UUID)
			}
		}
		return o
	}
	for _, tt := range tests {
		for strategy, want := range map[MIGStrategy]offered{MIGNone: tt.none, MIGSingle: tt.single, MIGMixed: tt.mixed} {
			t.Run(tt.description+"/"+string(strategy), func(t *testing.T) {
				p, err := PartitionOf(Node{GPUs: tt.gpus}, strategy)
				for _, text := range want.err {
					require.ErrorContains(t, err, text)
				}
				require.Equal(t, want.err != nil, err != nil, "%v", err)
				want.err = nil
				assert.Equal(t, want, uuids(p))
				n := len(want.single)
				for _, devices := range want.mixed {
					n += len(devices)
				}
				assert.Len(t, p.MIG(), n)
			})
		}
	}
	_, err := PartitionOf(Node{}, "both")
	require.ErrorContains(t, err, `unknown MIG strategy "both": use none, single or mixed`)
}

func TestParseMIGStrategy(t *testing.T) {
	for _, s := range MIGStrategies {
		got, err := ParseMIGStrategy(string(s))
		require.NoError(t, err)
		assert.Equal(t, s, got)
	}
	got, err := ParseMIGStrategy("")
	require.NoError(t, err)
	assert.Equal(t, MIGNone, got)
	_, err = ParseMIGStrategy("Single")
	require.ErrorContains(t, err, "use none, single or mixed")
}

func TestMIGDeviceOfANode(t *testing.T) {
	n := Node{GPUs: []GPU{{UUID: "GPU-9"}, cut(1, "1g.10gb", "2g.20gb")}}
	d, gpu, ok := n.MIGDevice("MIG-1-1")
	require.True(t, ok)
	assert.Equal(t, "2g.20gb", d.Profile)
	assert.Equal(t, "GPU-1", gpu.UUID)
	_, _, ok = n.MIGDevice("GPU-9")
	assert.False(t, ok)
	assert.Equal(t, "mig-1c.2g.20gb.me", MIGDevice{Profile: "1c.2g.20gb+me"}.ResourceName())
}
