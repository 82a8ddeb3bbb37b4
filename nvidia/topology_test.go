package nvidia

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"
)

func TestDiscoverTopologySimulatedDriver(t *testing.T) {
	library, simctl := simulated(t, "H200:nvlink=1:4,nvswitch=2", "H200:pci_board=0,nvlink=0:2", "H200:pci_switch=0,nvswitch=3",
		"H200:pci_upper=0", "H200:pci_root=0", "H200", "H200:numa=1")
	topology, err := DiscoverTopology(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Equal(t, []Pair{{}, {Level: LevelBoard, NVLinks: 6}, {Level: LevelSwitch, NVLinks: 2}, {Level: LevelSwitches, NVLinks: 0}, {Level: LevelHostBridge, NVLinks: 0}, {Level: LevelNode, NVLinks: 0}, {Level: LevelSystem, NVLinks: 0}},
		topology.Pairs[0])
	require.Equal(t, Pair{Level: LevelNode, NVLinks: 0}, topology.Pairs[1][2])
	require.Equal(t, 660, topology.Link(topology.UUIDs[1], topology.UUIDs[0]))

	simctl("lose", "1")
	topology, err = DiscoverTopology(nvml.New(nvml.WithLibraryPath(library)))
	require.NoError(t, err)
	require.Len(t, topology.UUIDs, 6, "a lost GPU is in no pair")
	require.Equal(t, Pair{Level: LevelSwitch, NVLinks: 2}, topology.Pairs[0][1])
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
