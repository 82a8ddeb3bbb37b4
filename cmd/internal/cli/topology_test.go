package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

func gpuUUID(i int) string { return fmt.Sprintf("GPU-%08d-5151-4000-8000-00000000000a", i) }

// nodeOf is a node of H200s. The file has the scores of their connections (nvidia.Pair.Score).
func nodeOf(tb testing.TB, gpus int, scores string) node.File {
	f := node.File{Name: "node-1", AgentVersion: "v1.0.0", WrittenAt: nodetest.Time, Node: nvidia.Node{DriverVersion: "575.57.08", CUDAVersion: "12.9"}}
	text, err := os.ReadFile(filepath.Join("testdata", scores))
	require.NoError(tb, err)
	numbers := strings.Fields(string(text))
	require.Len(tb, numbers, gpus*gpus)
	for i := range gpus {
		uuid := gpuUUID(i)
		f.Devices = append(f.Devices, node.Device{UUID: uuid, GPU: uuid, MemoryMiB: 143771, CorePercent: 100, Replicas: 10})
		f.Node.GPUs = append(f.Node.GPUs, nvidia.GPU{UUID: uuid, Index: i, Model: "NVIDIA H200", MemoryMiB: 143771, NUMANode: 2 * i / gpus})
		row := make([]nvidia.Pair, gpus)
		for j := range row {
			score, err := strconv.Atoi(numbers[i*gpus+j])
			require.NoError(tb, err)
			row[j] = hardware.PairOf(score)
		}
		f.Topology.UUIDs, f.Topology.Pairs = append(f.Topology.UUIDs, uuid), append(f.Topology.Pairs, row)
	}
	return f
}

// pcieNode has seven GPUs at all levels, one of them shared, one full, one unhealthy.
func pcieNode(tb testing.TB) *nodetest.StateDir {
	f := nodeOf(tb, 7, "topo-7-pcie.txt")
	f.Health = map[string]nvidia.Health{gpuUUID(6): {Reason: "XID 79: the GPU has fallen off the bus"}}
	f.ComputeSource = map[string]nvidia.TimeSource{gpuUUID(1): nvidia.TimesByInfo, gpuUUID(6): nvidia.TimesByLimiter}
	s := nodetest.NewStateDirOf(tb, f)
	s.Claim("c-train", "train", grant.Share{UUID: gpuUUID(1), MemoryMiB: 40960, CorePercent: 30})
	s.Claim("c-whole", "whole", grant.Share{UUID: gpuUUID(2), MemoryMiB: 143771, CorePercent: 100})
	return s
}

func TestTopology(t *testing.T) {
	for name, s := range map[string]*nodetest.StateDir{
		"7-pcie":      pcieNode(t),
		"8-nvswitch":  nodetest.NewStateDirOf(t, nodeOf(t, 8, "topo-8-nvswitch.txt")),
		"16-switches": nodetest.NewStateDirOf(t, nodeOf(t, 16, "topo-16-switches.txt")),
		"4-bridges":   nodetest.NewStateDirOf(t, nodeOf(t, 4, "topo-4-bridges.txt")),
		"1":           nodetest.NewStateDirOf(t, nodeOf(t, 1, "topo-1.txt")),
		"mig":         nodetest.NewStateDirOf(t, migNode(t)),
		"not-known":   nodetest.NewStateDir(t),
		"blocked-gpu": blockedNode(t),
		"excluded":    nodetest.NewStateDirOf(t, excludedNode(t)),
	} {
		golden.Check(t, "testdata/"+"topology-"+name+".txt", shows(t, "topology", "--state-dir", s.Dir))
	}
	cordoned := pcieNode(t)
	require.NoError(t, cordoned.Ledger.Cordon(t.Context(), gpuUUID(0), gpuUUID(1)))
	golden.Check(t, "testdata/topology-cordoned.txt", shows(t, "topology", "--state-dir", cordoned.Dir))
	golden.Check(t, "testdata/status-cordoned.txt", shows(t, "status", "--state-dir", cordoned.Dir))
	golden.Check(t, "testdata/topology-wide.txt", shows(t, "topology", "-o", "wide", "--state-dir", nodetest.NewStateDirOf(t, migNode(t)).Dir))
	dir := nodetest.NewStateDirOf(t, withoutPlaces(migNode(t))).Dir
	asJSON := shows(t, "topology", "-o", "json", "--state-dir", dir)
	golden.Check(t, "testdata/topology.json", asJSON)
	assert.YAMLEq(t, asJSON, shows(t, "topology", "-o", "yaml", "--state-dir", dir))
}

// withoutPlaces removes the NUMA nodes: their CPUs are those of this machine.
func withoutPlaces(f node.File) node.File {
	for i := range f.Node.GPUs {
		f.Node.GPUs[i].NUMANode = nvidia.NUMAUnknown
	}
	return f
}

// migNode has two GPUs, the second in MIG mode.
func migNode(tb testing.TB) node.File {
	f := nodeOf(tb, 2, "topo-2-soc.txt")
	gpu := &f.Node.GPUs[1]
	gpu.MIGCapable, gpu.MIGEnabled = true, true
	f.Devices = f.Devices[:1]
	for i, profile := range []string{"1g.18gb", "3g.71gb"} {
		uuid := fmt.Sprintf("MIG-%08d-5151-4000-8000-00000000000a", i)
		gpu.MIG = append(gpu.MIG, nvidia.MIGDevice{UUID: uuid, GPU: gpu.UUID, Profile: profile, MemoryMiB: 18000 * int64(3*i+1), GPUInstance: i})
		f.Devices = append(f.Devices, node.Device{UUID: uuid, GPU: gpu.UUID, Resource: "mig-" + profile, MemoryMiB: 18000 * int64(3*i+1), CorePercent: 100, Replicas: 1})
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
	require.NoError(tb, s.Ledger.Block(tb.Context(), "c-two", ledger.OwnerNRI, "no annotation", gpuUUID(1)))
	return s
}

// nvidiaWords are nvidia-smi's words for the levels, by the tens of the score.
var nvidiaWords = map[int]string{10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "PSB"}

// cellsOf are what nvidia-smi writes for the scores of a file; the hundreds count NVLinks.
func cellsOf(t *testing.T, gpus int, scores string) [][]string {
	text, err := os.ReadFile(filepath.Join("testdata", scores))
	require.NoError(t, err)
	var rows [][]string
	for i, number := range strings.Fields(string(text)) {
		if i%gpus == 0 {
			rows = append(rows, nil)
		}
		score, err := strconv.Atoi(number)
		require.NoError(t, err)
		word := nvidiaWords[score]
		switch {
		case i%gpus == i/gpus:
			word = "X"
		case score >= 100:
			word = fmt.Sprintf("NV%d", score/100)
		}
		require.NotEmpty(t, word, number)
		rows[i/gpus] = append(rows[i/gpus], word)
	}
	return rows
}

// The matrix has the format of nvidia-smi, which underlines the heads on a terminal.
func TestTopologyMatrix(t *testing.T) {
	for gpus, scores := range map[int]string{1: "topo-1.txt", 2: "topo-2-soc.txt", 4: "topo-4-bridges.txt", 7: "topo-7-pcie.txt", 8: "topo-8-nvswitch.txt", 16: "topo-16-switches.txt"} {
		dir := nodetest.NewStateDirOf(t, nodeOf(t, gpus, scores)).Dir
		out := shows(t, "topology", "--matrix", "--state-dir", dir)
		words := cellsOf(t, gpus, scores)
		require.Len(t, words, gpus)
		lines := strings.Split(out, "\n")
		colored := strings.Replace(out, lines[0], "\t\x1b[4m"+strings.TrimPrefix(lines[0], "\t")+"\x1b[0m", 1)
		assert.Equal(t, colored, shows(t, "topology", "--matrix", "--color=always", "--state-dir", dir))
		for i, heads := 0, strings.Split(lines[0], "\t"); i < gpus; i++ {
			cells := strings.Split(lines[i+1], "\t")
			assert.Equal(t, fmt.Sprintf("GPU%d", i), cells[0])
			assert.Equal(t, cells[0], heads[i+1])
			for j, word := range words[i] {
				assert.Equal(t, word, strings.TrimSpace(cells[j+1]), "%s: GPU %d to GPU %d", scores, i, j)
			}
		}
	}
	sysfs := fstest.MapFS{
		"bus/pci/devices/0000:3b:00.0/local_cpulist": {Data: []byte("0-13\n")},
		"devices/system/node/node1/cpulist":          {Data: []byte("28-55\n")},
	}
	f := nodeOf(t, 7, "topo-7-pcie.txt")
	f.Node.GPUs[0].PCIBusID, f.Node.GPUs[1].NUMANode = "00000000:3B:00.0", nvidia.NUMAUnknown
	var out strings.Builder
	require.NoError(t, writeMatrix(page{Writer: &out}, matrixOf(hardwareOf(f), sysfs)))
	golden.Check(t, "testdata/topology-matrix.txt", out.String())
}

func TestUnknownTopologyMatrix(t *testing.T) {
	status, out, stderr := gpuslice("topology", "--matrix", "--state-dir", nodetest.NewStateDir(t).Dir)
	assert.Equal(t, exitFailed, status)
	assert.Empty(t, out)
	assert.Contains(t, stderr, "restart gpuslice-agent")
}

// One GPU needs no topology in node.json.
func TestTopologyOfOneGPU(t *testing.T) {
	f := nodeOf(t, 1, "topo-1.txt")
	asked := shows(t, "topology", "--matrix", "--state-dir", nodetest.NewStateDirOf(t, f).Dir)
	f.Topology = nvidia.Topology{}
	assert.Equal(t, asked, shows(t, "topology", "--matrix", "--state-dir", nodetest.NewStateDirOf(t, f).Dir))
}

func TestTopologyWithoutGPUs(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "node.json")))
	status, _, stderr := gpuslice("topology", "--state-dir", s.Dir)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "has gpuslice-agent run on this node")
}

// Whatever the connections are, each GPU is in the tree once, the counts are those of
// the parts, and two GPUs meet in a group no nearer than they can reach each other.
func TestTreeHasEachGPUOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "gpus")
		f := node.File{}
		v := view.Node{}
		for i := range n {
			f.Topology.UUIDs = append(f.Topology.UUIDs, gpuUUID(i))
			f.Topology.Pairs = append(f.Topology.Pairs, make([]nvidia.Pair, n))
			f.Node.GPUs = append(f.Node.GPUs, nvidia.GPU{UUID: gpuUUID(i), Index: i})
			v.GPUs = append(v.GPUs, view.GPU{UUID: gpuUUID(i), Index: i, Healthy: true, GrantedContainers: rapid.IntRange(0, 1).Draw(t, "granted"), GrantableReplicas: 2})
			for j := range i {
				p := nvidia.Pair{Level: nvidia.Level(rapid.IntRange(0, int(nvidia.LevelBoard)).Draw(t, "level")), NVLinks: rapid.IntRange(0, 2).Draw(t, "links")}
				f.Topology.Pairs[i][j], f.Topology.Pairs[j][i] = p, p
			}
		}
		seen := map[int]bool{}
		var walk func(b branch) (gpus, free int)
		walk = func(b branch) (gpus, free int) {
			if b.GPU != nil {
				if seen[b.GPU.Index] {
					t.Fatalf("GPU %d twice", b.GPU.Index)
				}
				seen[b.GPU.Index] = true
				if v.GPUs[b.GPU.Index].GrantedContainers == 0 {
					return 1, 1
				}
				return 1, 0
			}
			for _, child := range b.Children {
				c, f := walk(child)
				gpus, free = gpus+c, free+f
			}
			if gpus != b.GPUs || free != b.Free {
				t.Fatalf("%s reports %d/%d, want %d/%d", b.Level, b.Free, b.GPUs, free, gpus)
			}
			return gpus, free
		}
		if walk(treeOf(v, hardwareOf(f))); len(seen) != n {
			t.Fatalf("%d of %d GPUs", len(seen), n)
		}
	})
}

func TestLinksText(t *testing.T) {
	assert.Equal(t, "NV4: 1-2; NV1: 0,5", linksText(map[int]int{0: 1, 5: 1, 1: 4, 2: 4}))
	assert.Equal(t, "NV2: 0,2-3,9", linksText(map[int]int{0: 2, 2: 2, 3: 2, 9: 2}))
	assert.Empty(t, linksText(nil))
}

// What `gpus` asks of a driver is what the others show: the whole way, with NVML's own
// functions on the simulated driver.
func TestTopologyOfADriver(t *testing.T) {
	sim, err := filepath.Abs("../../../build/sim")
	require.NoError(t, err)
	t.Setenv("SIMGPU_STATE", filepath.Join(t.TempDir(), "state"))
	out, err := exec.Command(filepath.Join(sim, "simctl"), "init",
		"--gpu", "H200:pci_switch=0,nvlink=1:4", "--gpu", "H200:pci_switch=0", "--gpu", "T4:pci_switch=1,numa=1").CombinedOutput()
	require.NoError(t, err, "%s (make build makes it)", out)
	dir := filepath.Join(t.TempDir(), "gpuslice")
	ledger, err := ledger.Open(dir)
	require.NoError(t, err)
	require.NoError(t, ledger.Close())
	gpus := shows(t, "gpus", "--nvml-library", filepath.Join(sim, "libnvidia-ml.so.1"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(gpus), 0o600))

	tree := shows(t, "topology", "--state-dir", dir)
	assert.Contains(t, tree, "\n├─ PIX      2/2")
	assert.Contains(t, tree, "\n│  └─ GPU1  free  NV4: 0 ")
	assert.Contains(t, tree, "\n└─ GPU2     free")
	matrix := shows(t, "topology", "--matrix", "--state-dir", dir)
	assert.True(t, strings.HasPrefix(matrix, "\tGPU0\tGPU1\tGPU2\tCPU Affinity\t"), matrix)
	assert.Contains(t, matrix, "\nGPU1\tNV4\t X \tSYS\t")
	assert.Contains(t, shows(t, "describe", "gpu", "2", "--state-dir", dir), "Tesla T4")
}
