package nvidia

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLinkScores(t *testing.T) {
	topology := newTopology([]string{"GPU-0", "GPU-1", "GPU-2"})
	topology.set(0, 1, Pair{Level: LevelSwitch})
	topology.set(1, 2, Pair{Level: LevelNode, NVLinks: 18})
	assert.Equal(t, 50, topology.Link("GPU-0", "GPU-1"))
	assert.Equal(t, 1820, topology.Link("GPU-2", "GPU-1"))
	assert.Equal(t, 10, topology.Link("GPU-0", "GPU-2"), "an unknown connection is the farthest")
	assert.Zero(t, topology.Link("GPU-0", "GPU-0"))
	assert.Zero(t, topology.Link("GPU-0", "GPU-none"))
	assert.Zero(t, Topology{}.Link("GPU-0", "GPU-1"))
}

func TestTopologyAsJSON(t *testing.T) {
	topology := newTopology([]string{"GPU-0", "GPU-1", "GPU-2"})
	topology.set(0, 1, Pair{Level: LevelNode, NVLinks: 4})
	text, err := json.Marshal(topology)
	require.NoError(t, err)
	require.Contains(t, string(text), `[{"level":"NODE","nvlinks":4},{"level":"SYS"},{"level":"SYS"}]`)
	var again Topology
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, topology, again)
	require.Equal(t, "SYS", Level(99).String())
	require.NoError(t, json.Unmarshal([]byte(`{"level":"QUX"}`), &Pair{}))
}

func TestDiscoverTopologySimulatedDriver(t *testing.T) {
	library, simctl := simulated(t, "H200:nvlink=1:4,nvswitch=2", "H200:pci_board=0,nvlink=0:2", "H200:pci_switch=0,nvswitch=3",
		"H200:pci_upper=0", "H200:pci_root=0", "H200", "H200:numa=1")
	topology, err := DiscoverTopology(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Equal(t, []Pair{{}, {LevelBoard, 6}, {LevelSwitch, 2}, {LevelSwitches, 0}, {LevelHostBridge, 0}, {LevelNode, 0}, {LevelSystem, 0}},
		topology.Pairs[0])
	require.Equal(t, Pair{LevelNode, 0}, topology.Pairs[1][2])
	require.Equal(t, 660, topology.Link(topology.UUIDs[1], topology.UUIDs[0]))

	simctl("lose", "1")
	topology, err = DiscoverTopology(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Len(t, topology.UUIDs, 6, "a lost GPU is in no pair")
	require.Equal(t, Pair{LevelSwitch, 2}, topology.Pairs[0][1])
}

// What NVML can't report is the farthest, not an error.
func TestDiscoverTopologyOfAnOddDriver(t *testing.T) {
	answers := func(level nvml.GpuTopologyLevel, ret nvml.Return) func(*server.Server) {
		return func(s *server.Server) {
			for _, d := range s.Devices {
				d.(*server.Device).GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
					return level, ret
				}
				d.(*server.Device).GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
			}
		}
	}
	for _, tt := range []struct {
		description string
		set         func(*server.Server)
		want        Pair
	}{
		{"a level of the future", answers(35, nvml.SUCCESS), Pair{}},
		{"no levels", answers(nvml.TOPOLOGY_SINGLE, nvml.ERROR_NOT_SUPPORTED), Pair{}},
		{"a library without these functions", func(s *server.Server) {
			s.LookupSymbolFunc = func(string) error { return nvml.ERROR_FUNCTION_NOT_FOUND }
		}, Pair{}},
		{"NVSwitches, by a library without the link type", func(s *server.Server) {
			answers(nvml.TOPOLOGY_NODE, nvml.SUCCESS)(s)
			s.LookupSymbolFunc = func(symbol string) error {
				if strings.HasPrefix(symbol, linkRemoteSymbol) || symbol == linkTypeSymbol {
					return nvml.ERROR_FUNCTION_NOT_FOUND
				}
				return nil
			}
			for _, d := range s.Devices {
				d.(*server.Device).GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
			}
		}, Pair{Level: LevelNode}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			s := dgxa100.New()
			tt.set(s)
			topology, err := DiscoverTopology(s)
			require.NoError(t, err)
			require.Len(t, topology.UUIDs, 8)
			require.Equal(t, tt.want, topology.Pairs[0][7])
			require.Len(t, s.ShutdownCalls(), 1)
		})
	}
	s := dgxa100.New()
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	_, err := DiscoverTopology(s)
	require.ErrorIs(t, err, nvml.ERROR_UNKNOWN)
	s.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	_, err = DiscoverTopology(s)
	require.ErrorIs(t, err, nvml.ERROR_DRIVER_NOT_LOADED)
}

// A score has one pair.
func TestPairOf(t *testing.T) {
	for level := LevelSystem; level <= LevelBoard; level++ {
		for links := range 19 {
			p := Pair{Level: level, NVLinks: links}
			assert.Equal(t, p, PairOf(p.Score()))
		}
	}
	for _, score := range []int{-10, 0, 5, 70, 190} {
		assert.Zero(t, PairOf(score), score)
	}
}
