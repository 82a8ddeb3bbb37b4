package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/node/nodetest"
	"github.com/gpuslice/gpuslice/monitor/view"
)

func cardUUID(i int) string { return fmt.Sprintf("GPU-%08d-5151-4000-8000-00000000000a", i) }

// nodeOf is a node of H200s that are connected as a text of nvidia-smi says.
func nodeOf(tb testing.TB, cards int, matrix string) node.File {
	f := node.File{Name: "node-1", AgentVersion: "v1.0.0", WrittenAt: nodetest.Time, Node: gpu.Node{DriverVersion: "575.57.08", CUDAVersion: "12.9"}}
	var uuids []string
	for i := range cards {
		uuid := cardUUID(i)
		uuids = append(uuids, uuid)
		f.Devices = append(f.Devices, node.Device{UUID: uuid, Card: uuid, MemoryMiB: 143771, CorePercent: 100, Slots: 10})
		f.Node.Cards = append(f.Node.Cards, gpu.Card{UUID: uuid, Index: i, Model: "NVIDIA H200", MemoryMiB: 143771, NUMANode: 2 * i / cards})
	}
	text, err := os.ReadFile(filepath.Join("../../gpu/testdata", matrix))
	require.NoError(tb, err)
	f.Topology, err = gpu.ParseTopology(string(text), uuids)
	require.NoError(tb, err)
	return f
}

// pcieNode has seven cards at all levels, one of them shared, one full, one unhealthy.
func pcieNode(tb testing.TB) *nodetest.StateDir {
	f := nodeOf(tb, 7, "topo-7-pcie.txt")
	f.Health = map[string]gpu.Health{cardUUID(6): {Reason: "XID 79: the card has fallen off the bus"}}
	s := nodetest.NewStateDirOf(tb, f)
	s.Claim("c-train", "train", grant.Share{UUID: cardUUID(1), MemoryMiB: 40960, CorePercent: 30})
	s.Claim("c-whole", "whole", grant.Share{UUID: cardUUID(2), MemoryMiB: 143771, CorePercent: 100})
	return s
}

func TestTopology(t *testing.T) {
	for name, s := range map[string]*nodetest.StateDir{
		"7-pcie":       pcieNode(t),
		"8-nvswitch":   nodetest.NewStateDirOf(t, nodeOf(t, 8, "topo-8-nvswitch.txt")),
		"16-switches":  nodetest.NewStateDirOf(t, nodeOf(t, 16, "topo-16-switches.txt")),
		"4-bridges":    nodetest.NewStateDirOf(t, nodeOf(t, 4, "topo-4-bridges.txt")),
		"1":            nodetest.NewStateDirOf(t, nodeOf(t, 1, "topo-1.txt")),
		"mig":          nodetest.NewStateDirOf(t, migNode(t)),
		"not-known":    nodetest.NewStateDir(t),
		"blocked-card": blockedNode(t),
		"excluded":     nodetest.NewStateDirOf(t, excludedNode(t)),
	} {
		golden(t, "topology-"+name+".txt", shows(t, "topology", "--state-dir", s.Dir))
	}
	cordoned := pcieNode(t)
	require.NoError(t, cordoned.Ledger.Cordon(t.Context(), cardUUID(0), cardUUID(1)))
	golden(t, "topology-cordoned.txt", shows(t, "topology", "--state-dir", cordoned.Dir))
	golden(t, "status-cordoned.txt", shows(t, "status", "--state-dir", cordoned.Dir))
	golden(t, "topology-wide.txt", shows(t, "topology", "-o", "wide", "--state-dir", nodetest.NewStateDirOf(t, migNode(t)).Dir))
	dir := nodetest.NewStateDirOf(t, withoutPlaces(migNode(t))).Dir
	golden(t, "topology.json", shows(t, "topology", "-o", "json", "--state-dir", dir))
	golden(t, "topology.yaml", shows(t, "topology", "-o", "yaml", "--state-dir", dir))
}

// withoutPlaces is a node whose NUMA nodes aren't known: which processors those have is
// this machine's affair.
func withoutPlaces(f node.File) node.File {
	for i := range f.Node.Cards {
		f.Node.Cards[i].NUMANode = gpu.NUMAUnknown
	}
	return f
}

// migNode has two cards, the second in MIG mode.
func migNode(tb testing.TB) node.File {
	f := nodeOf(tb, 2, "topo-2-soc.txt")
	card := &f.Node.Cards[1]
	card.MIGCapable, card.MIGEnabled = true, true
	f.Devices = f.Devices[:1]
	for i, profile := range []string{"1g.18gb", "3g.71gb"} {
		uuid := fmt.Sprintf("MIG-%08d-5151-4000-8000-00000000000a", i)
		card.MIG = append(card.MIG, gpu.MIGDevice{UUID: uuid, Card: card.UUID, Profile: profile, MemoryMiB: 18000 * int64(3*i+1), GPUInstance: i})
		f.Devices = append(f.Devices, node.Device{UUID: uuid, Card: card.UUID, Resource: "mig-" + profile, MemoryMiB: 18000 * int64(3*i+1), CorePercent: 100, Slots: 1})
	}
	return f
}

func excludedNode(tb testing.TB) node.File {
	f := nodeOf(tb, 2, "topo-2-soc.txt")
	f.Devices = f.Devices[:1]
	return f
}

func blockedNode(tb testing.TB) *nodetest.StateDir {
	s := nodetest.NewStateDirOf(tb, nodeOf(tb, 2, "topo-2-soc.txt"))
	require.NoError(tb, s.Ledger.Block(tb.Context(), "c-two", grant.OwnerNRI, "no annotation", cardUUID(1)))
	return s
}

// What is printed is what nvidia-smi prints: our reader of that reads it.
func TestTopologyMatrix(t *testing.T) {
	for cards, text := range map[int]string{1: "topo-1.txt", 2: "topo-2-soc.txt", 4: "topo-4-bridges.txt", 7: "topo-7-pcie.txt", 8: "topo-8-nvswitch.txt", 16: "topo-16-switches.txt"} {
		f := nodeOf(t, cards, text)
		out := shows(t, "topology", "--matrix", "--color=always", "--state-dir", nodetest.NewStateDirOf(t, f).Dir)
		got, err := gpu.ParseTopology(out, f.Topology.UUIDs)
		require.NoError(t, err)
		assert.Equal(t, f.Topology, got, text)
	}
	sysfs := fstest.MapFS{
		"bus/pci/devices/0000:3b:00.0/local_cpulist": {Data: []byte("0-13\n")},
		"devices/system/node/node1/cpulist":          {Data: []byte("28-55\n")},
	}
	f := nodeOf(t, 7, "topo-7-pcie.txt")
	f.Node.Cards[0].PCIBusID, f.Node.Cards[1].NUMANode = "00000000:3B:00.0", gpu.NUMAUnknown
	var out strings.Builder
	require.NoError(t, writeMatrix(page{Writer: &out}, matrixOf(f, sysfs)))
	golden(t, "topology-matrix.txt", out.String())
}

func TestTopologyMatrixThatIsNotKnown(t *testing.T) {
	status, out, stderr := gpuslice("topology", "--matrix", "--state-dir", nodetest.NewStateDir(t).Dir)
	assert.Equal(t, exitFailed, status)
	assert.Empty(t, out)
	assert.Contains(t, stderr, "restart it")
}

// How one card is connected is known without asking.
func TestTopologyOfOneCard(t *testing.T) {
	f := nodeOf(t, 1, "topo-1.txt")
	asked := shows(t, "topology", "--matrix", "--state-dir", nodetest.NewStateDirOf(t, f).Dir)
	f.Topology = gpu.Topology{}
	assert.Equal(t, asked, shows(t, "topology", "--matrix", "--state-dir", nodetest.NewStateDirOf(t, f).Dir))
}

func TestTopologyWithoutCards(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "node.json")))
	status, _, stderr := gpuslice("topology", "--state-dir", s.Dir)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "has gpuslice-agent run on this node")
}

// Whatever the connections are, each card is in the tree once, the counts are those of
// the parts, and two cards meet in a group no nearer than they can reach each other.
func TestTreeHasEachCardOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "cards")
		f := node.File{}
		v := view.Node{}
		for i := range n {
			f.Topology.UUIDs = append(f.Topology.UUIDs, cardUUID(i))
			f.Topology.Pairs = append(f.Topology.Pairs, make([]gpu.Pair, n))
			f.Node.Cards = append(f.Node.Cards, gpu.Card{UUID: cardUUID(i), Index: i})
			v.Cards = append(v.Cards, view.Card{UUID: cardUUID(i), Index: i, Healthy: true, GrantedContainers: rapid.IntRange(0, 1).Draw(t, "granted"), GrantableSlots: 2})
			for j := range i {
				p := gpu.Pair{Level: gpu.Level(rapid.IntRange(0, int(gpu.LevelBoard)).Draw(t, "level")), NVLinks: rapid.IntRange(0, 2).Draw(t, "links")}
				f.Topology.Pairs[i][j], f.Topology.Pairs[j][i] = p, p
			}
		}
		seen := map[int]bool{}
		var walk func(b branch) (cards, free int)
		walk = func(b branch) (cards, free int) {
			if b.Card != nil {
				if seen[b.Card.Index] {
					t.Fatalf("card %d twice", b.Card.Index)
				}
				seen[b.Card.Index] = true
				if v.Cards[b.Card.Index].GrantedContainers == 0 {
					return 1, 1
				}
				return 1, 0
			}
			for _, child := range b.Children {
				c, f := walk(child)
				cards, free = cards+c, free+f
			}
			if cards != b.Cards || free != b.Free {
				t.Fatalf("%s says %d/%d, and has %d/%d", b.Level, b.Free, b.Cards, free, cards)
			}
			return cards, free
		}
		if walk(treeOf(v, f)); len(seen) != n {
			t.Fatalf("%d of %d cards", len(seen), n)
		}
	})
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,9": {0, 2, 3, 9}} {
		assert.Equal(t, want, ranges(numbers))
	}
	assert.Equal(t, "NV4: 1-2; NV1: 0,5", linksText(map[int]int{0: 1, 5: 1, 1: 4, 2: 4}))
}
