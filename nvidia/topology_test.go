package nvidia

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// names are UUIDs for GPUs of a text.
func names(n int) []string {
	uuids := make([]string, n)
	for i := range uuids {
		uuids[i] = fmt.Sprintf("GPU-%d", i)
	}
	return uuids
}

func parseFile(t *testing.T, file string, gpus int) Topology {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	topology, err := ParseTopology(string(text), names(gpus))
	require.NoError(t, err)
	return topology
}

func TestParseTopology(t *testing.T) {
	for _, tt := range []struct {
		description, file string
		gpus              int
		pairs             map[[2]int]Pair // some of them
		counts            map[Pair]int    // all pairs
	}{
		{"one GPU", "topo-1.txt", 1, nil, map[Pair]int{}},
		{"two sockets, by an old nvidia-smi", "topo-2-soc.txt", 2,
			map[[2]int]Pair{{0, 1}: {Level: LevelSystem}}, map[Pair]int{{}: 1}},
		{"bridges in pairs: the level is the node's", "topo-4-bridges.txt", 4,
			map[[2]int]Pair{{0, 1}: {LevelNode, 4}, {2, 3}: {LevelNode, 4}, {1, 2}: {}},
			map[Pair]int{{LevelNode, 4}: 2, {}: 4}},
		{"seven GPUs, every level, a word of the future, a NIC", "topo-7-pcie.txt", 7,
			map[[2]int]Pair{{0, 1}: {LevelSwitch, 0}, {2, 3}: {LevelSwitches, 0}, {4, 5}: {LevelHostBridge, 0},
				{0, 2}: {LevelNode, 0}, {5, 6}: {}, {0, 6}: {}},
			map[Pair]int{{LevelSwitch, 0}: 1, {LevelSwitches, 0}: 1, {LevelHostBridge, 0}: 1, {LevelNode, 0}: 5, {}: 13}},
		{"eight GPUs on NVSwitches, four NICs", "topo-8-nvswitch.txt", 8,
			map[[2]int]Pair{{0, 3}: {LevelNode, 18}, {3, 4}: {LevelSystem, 18}},
			map[Pair]int{{LevelNode, 18}: 12, {LevelSystem, 18}: 16}},
		{"sixteen GPUs on PCIe switches", "topo-16-switches.txt", 16,
			map[[2]int]Pair{{14, 15}: {LevelSwitch, 0}, {12, 15}: {LevelSwitches, 0}, {8, 15}: {LevelNode, 0}},
			map[Pair]int{{LevelSwitch, 0}: 8, {LevelSwitches, 0}: 16, {LevelNode, 0}: 32, {}: 64}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			topology := parseFile(t, tt.file, tt.gpus)
			require.Equal(t, names(tt.gpus), topology.UUIDs)
			counts := map[Pair]int{}
			for i := range topology.Pairs {
				require.Equal(t, Pair{}, topology.Pairs[i][i])
				for j := range i {
					require.Equal(t, topology.Pairs[i][j], topology.Pairs[j][i])
					counts[topology.Pairs[i][j]]++
				}
			}
			assert.Equal(t, tt.counts, counts)
			for at, want := range tt.pairs {
				pair, known := topology.Pair(topology.UUIDs[at[1]], topology.UUIDs[at[0]])
				assert.True(t, known)
				assert.Equal(t, want, pair, "%v", at)
			}
		})
	}
}

func TestParseTopologyOfOddTexts(t *testing.T) {
	for _, tt := range []struct {
		description, text string
		gpus              int
		want              Pair // of the first two
		wantErr           string
	}{
		{"the two directions differ: the farther", "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tPIX\t X \n", 2, Pair{}, ""},
		{"blanks in place of tabs", "      GPU0 GPU1 CPU Affinity\nGPU0   X   NV2  0-7\nGPU1  NV2   X   0-7\n", 2, Pair{LevelSystem, 2}, ""},
		{"a cell is missing", "\tGPU0\tGPU1\nGPU0\t X\nGPU1\tPIX\t X\n", 2, Pair{}, ""},
		{"links without a number", "\tGPU0\tGPU1\nGPU0\tX\tNV#\nGPU1\tNV#\tX\n", 2, Pair{}, ""},
		{"same board", "\tGPU0\tGPU1\nGPU0\tX\tPSB\nGPU1\tPSB\tX\r\n", 2, Pair{LevelBoard, 0}, ""},
		{"columns in another order", "\tGPU1\tGPU0\nGPU1\tX\tPHB\nGPU0\tPHB\tX\n", 2, Pair{LevelHostBridge, 0}, ""},
		{"no matrix", "NVIDIA-SMI has failed\n", 2, Pair{}, "use the output of nvidia-smi topo -m"},
		{"nothing", "", 0, Pair{}, "use the output of nvidia-smi topo -m"},
		{"fewer GPUs than UUIDs", "\tGPU0\nGPU0\tX\n", 2, Pair{}, "not of GPU0 to GPU1"},
		{"more GPUs than UUIDs", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n", 1, Pair{}, "columns of the GPUs [0 1], not of GPU0 to GPU0"},
		{"a row is missing", "\tGPU0\tGPU1\nGPU0\tX\tPIX\n", 2, Pair{}, "rows of the GPUs [0]"},
		{"a row twice", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU0\tX\tPIX\n", 2, Pair{}, "rows of the GPUs [0 0]"},
		{"a number too long", "\tGPU99999999999999999999\nGPU0\tX\n", 1, Pair{}, "rows of the GPUs []"},
	} {
		t.Run(tt.description, func(t *testing.T) {
			topology, err := ParseTopology(tt.text, names(tt.gpus))
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			pair, _ := topology.Pair("GPU-0", "GPU-1")
			require.Equal(t, tt.want, pair)
		})
	}
	_, err := ParseTopology("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n", []string{"GPU-1", "GPU-1"})
	require.ErrorContains(t, err, "not unique")
}

func FuzzParseTopology(f *testing.F) {
	files, err := filepath.Glob("testdata/topo-*.txt")
	require.NoError(f, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(string(text), strings.Count(string(text), "\nGPU"))
	}
	f.Fuzz(func(t *testing.T, text string, gpus int) {
		gpus = max(0, min(gpus, 32))
		topology, err := ParseTopology(text, names(gpus))
		if err == nil {
			require.Len(t, topology.Pairs, gpus)
		}
	})
}

func TestLinkScores(t *testing.T) {
	topology := parseFile(t, "topo-7-pcie.txt", 7)
	assert.Equal(t, 50, topology.Link("GPU-0", "GPU-1"))
	assert.Equal(t, 40, topology.Link("GPU-3", "GPU-2"))
	assert.Equal(t, 30, topology.Link("GPU-4", "GPU-5"))
	assert.Equal(t, 20, topology.Link("GPU-0", "GPU-2"))
	assert.Equal(t, 10, topology.Link("GPU-5", "GPU-6"), "an unknown word is the farthest")
	assert.Zero(t, topology.Link("GPU-0", "GPU-0"))
	assert.Zero(t, topology.Link("GPU-0", "GPU-none"))
	assert.Zero(t, Topology{}.Link("GPU-0", "GPU-1"))
	assert.Equal(t, 1820, parseFile(t, "topo-8-nvswitch.txt", 8).Link("GPU-0", "GPU-1"))
}

func TestTopologyAsJSON(t *testing.T) {
	topology := parseFile(t, "topo-4-bridges.txt", 4)
	text, err := json.Marshal(topology)
	require.NoError(t, err)
	require.Contains(t, string(text), `[{"level":"NODE","nvlinks":4},{"level":"SYS"},{"level":"SYS"},{"level":"SYS"}]`)
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
