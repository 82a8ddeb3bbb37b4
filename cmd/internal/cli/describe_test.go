package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// without takes this run's own directory out of a text.
func without(s *nodetest.StateDir, text string) string {
	return strings.ReplaceAll(text, s.Dir, "/run/gpuslice")
}

func TestDescribeGPU(t *testing.T) {
	s := pcieNode(t)
	s.Use("c-train", 0, 30000<<20)
	show := func(args ...string) string {
		return without(s, shows(t, append([]string{"describe", "gpu", "--state-dir", s.Dir}, args...)...))
	}
	golden.Check(t, "testdata/describe-gpu.txt", show("1"))
	assert.Equal(t, show("1"), show(gpuUUID(1)))
	assert.Equal(t, show("1"), show("GPU-00000001"), "a prefix of its UUID")
	golden.Check(t, "testdata/describe-gpu-unhealthy.txt", show("6"))
	golden.Check(t, "testdata/describe-gpu.yaml", show("1", "-o", "yaml"))

	mig := nodetest.NewStateDirOf(t, migNode(t))
	mig.Claim("c-slice", "slice", grant.Share{UUID: "MIG-00000001-5151-4000-8000-00000000000a", MemoryMiB: 72000})
	golden.Check(t, "testdata/describe-gpu-mig-gpu.txt", shows(t, "describe", "gpu", "1", "--state-dir", mig.Dir))
	golden.Check(t, "testdata/describe-gpu-mig-device.txt", shows(t, "describe", "gpu", "MIG-00000001", "--state-dir", mig.Dir))
}

func TestDescribeContainer(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c-train", "train", grant.Share{UUID: nodetest.H200, MemoryMiB: 40960, CorePercent: 30}, grant.Share{UUID: nodetest.T4, MemoryMiB: 8000})
	s.Use("c-train", 0, 30000<<20, 1)
	s.Compute("c-train", 0, 1500*time.Millisecond, 250*time.Millisecond, 42)
	limits, err := limiter.ReadLimits(limiter.LimitsPath(s.Ledger.Dir("c-train")))
	require.NoError(t, err)
	limits.Devices[0].CoreSoftPercent = 60
	require.NoError(t, limiter.UpdateLimits(s.Ledger.Dir("c-train"), limits))
	require.NoError(t, limiter.UpdateResidue(s.Ledger.Dir("c-train"), []uint64{300 << 20, 0}))
	show := func(args ...string) string {
		return without(s, shows(t, append([]string{"describe", "container", "--state-dir", s.Dir}, args...)...))
	}
	text := show("c-train")
	golden.Check(t, "testdata/describe-container.txt", text)
	for _, name := range []string{"c-tr", "main", "default/train", "default/train/main", "default/train:main"} {
		assert.Equal(t, text, show(name), name)
	}
	golden.Check(t, "testdata/describe-container.json", show("main", "-o", "json"))
}

// What cannot be read is a problem; the rest is shown.
func TestDescribeADamagedContainer(t *testing.T) {
	s := busyNode(t)
	require.NoError(t, os.WriteFile(s.Path("c-hostile", "usage"), []byte("\x1b[2Jgarbage"), 0o600))
	require.NoError(t, os.Remove(s.Path("c-hostile", "limits")))
	for _, id := range []string{"c-hostile", "c-corrupt", "c-done"} {
		golden.Check(t, "testdata/"+"describe-container-"+id+".txt", without(s, shows(t, "describe", "container", id, "--state-dir", s.Dir)))
	}
	golden.Check(t, "testdata/describe-gpu-damaged.txt", without(s, shows(t, "describe", "gpu", "1", "--state-dir", s.Dir)))
	require.NoError(t, s.Ledger.Block(t.Context(), "c-all", ledger.OwnerNRI, "the kubelet is down"))
	out := shows(t, "describe", "container", "c-all", "--state-dir", s.Dir)
	assert.Contains(t, out, "\nState:        blocking\n")
	assert.Contains(t, out, "\nBlocks:       all\n")
	assert.Contains(t, out, "\nproblem: container c-all: ")
	assert.Contains(t, shows(t, "describe", "gpu", "0", "--state-dir", s.Dir), "c-all      blocking  all")
}

func TestDescribeNothing(t *testing.T) {
	s := busyNode(t)
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"gpu", "7"}, exitFailed, `GPU "7" not found`},
		{[]string{"gpu", "GPU-0000000"}, exitFailed, "is ambiguous: use one of GPU-00000001-"},
		{[]string{"gpu"}, exitUsage, "an argument is missing"},
		{[]string{"container", "nope\x1b[2J"}, exitFailed, `"nope?[2J"`},
		{[]string{"container", "main"}, exitFailed, `"main" is ambiguous: use one of c-done (default/done/main), c-hostile (default/hostile/main), c-train (default/train/main)`},
		{[]string{"container", ""}, exitFailed, "not found"},
		{[]string{"node"}, exitUsage, `gpuslice describe: unknown command "node": use container or gpu`},
	} {
		status, out, stderr := gpuslice(append(append([]string{"describe"}, test.args...), "--state-dir", s.Dir)...)
		assert.Equal(t, test.status, status, "%v", test.args)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
	status, out, _ := gpuslice("describe")
	assert.Equal(t, exitDone, status)
	assert.Contains(t, out, "\n  container ")
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "node.json")))
	status, _, stderr := gpuslice("describe", "gpu", "0", "--state-dir", s.Dir)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "has gpuslice-agent run on this node")
}

func TestUnaccounted(t *testing.T) {
	share := func(uuid string, residue uint64) shareDescribed {
		return shareDescribed{Share: view.Share{UUID: uuid, ResidueBytes: residue}, Limit: &limitDescribed{}}
	}
	alone := share("GPU-1", 0)
	alone.Limit.Unmeasured = true
	for _, test := range []struct {
		share shareDescribed
		want  string
	}{
		{share("GPU-1", 0), ""},
		{share("GPU-1", 5<<20), "5 MiB in the driver, subtracted from the limit"},
		{share("MIG-1", 0), "not measured in a MIG device"},
		{alone, "measured by each process, as a part of its contexts"},
		{shareDescribed{Share: view.Share{UUID: "GPU-1"}}, ""},
	} {
		assert.Equal(t, test.want, test.share.unaccounted())
	}
}

func TestFactsArePadded(t *testing.T) {
	var out strings.Builder
	f := facts{page: page{Writer: &out}, indent: "  "}
	f.add("A", "%d", 1)
	f.add("Longer", "%s", f.part(1, 2, "1 of 2"))
	f.add("Empty", "%s", "")
	f.add("None", "%s", f.part(1, 0, "1 of 0"))
	require.NoError(t, f.write())
	assert.Equal(t, "  A:       1\n  Longer:  [|||||||||          50%]  1 of 2\n  None:    1 of 0\n", out.String())
	_, err := describeGPU(view.Node{}, hardwareOf(nodeOf(t, 1, "topo-1.txt")), gpuUUID(0))
	assert.ErrorContains(t, err, "try again")
	assert.Equal(t, []string{"GPU1", "GPU2", "GPU10"}, sortedGPUs(map[string]string{"GPU10": "", "GPU2": "", "GPU1": ""}))
}

func TestExplainNamesHeldGPUs(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, explainPage(page{Writer: &out}, cluster.Explanation{
		Explanation: engine.Explanation{Pod: "team/train", State: engine.ExplainedReserved, Text: "on n1"},
		Holds:       []cluster.Hold{{Container: "main\x1b", GPU: nodetest.T4, Since: time.Now()}},
	}))
	require.Contains(t, out.String(), "\ncontainer main")
	require.Contains(t, out.String(), " holds "+nodetest.T4+" since ")
	require.NotContains(t, out.String(), "\x1b")
}
