package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(runAs); mode != "" {
		os.Exit(runAsProgram(mode))
	}
	for _, e := range os.Environ() { // of the environment of the tests
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, config.EnvPrefix) {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// runAs makes the test binary run as the program.
const runAs = "TEST_RUN_AS_GPUSLICE"

func runAsProgram(mode string) int {
	if mode != "panic" {
		Main(command())
	}
	// top, and its third reading panics.
	readings := 0
	err := topLive(context.Background(), term.Style{}, topOptions{interval: shortestInterval, by: &choice{value: "memory"}}, false, func(ctx context.Context) (view.Node, error) {
		if readings++; readings == 3 {
			panic("as the test wants it")
		}
		return nodeview.Read(ctx, os.Args[1])
	})
	fmt.Fprintln(os.Stderr, err)
	return exitFailed
}

// plugin makes the tests run kubectl-gpuslice.
var plugin bool

func command() *cobra.Command {
	if plugin {
		return Plugin()
	}
	return Node()
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return run(ctx, command(), args, stdout, stderr)
}

func gpuslice(args ...string) (status int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	status = execute(context.Background(), args, &out, &complaint)
	return status, out.String(), complaint.String()
}

// busyNode is a node with a container in each state.
func busyNode(t *testing.T) *nodetest.StateDir {
	s := nodetest.NewStateDir(t)
	s.Claim("c-train", "train", grant.Share{UUID: nodetest.H200, MemoryMiB: 40960, CorePercent: 30}, grant.Share{UUID: nodetest.T4, MemoryMiB: 8000})
	s.Use("c-train", 0, 30000<<20, 1)
	s.Use("c-train", 1, 1<<20)
	s.Claim("c-hostile", "hostile", grant.Share{UUID: nodetest.T4, MemoryMiB: 1000, CorePercent: 50})
	s.Use("c-hostile", 0, math.MaxUint64)
	s.Claim("c-done", "done", grant.Share{UUID: nodetest.H200, MemoryMiB: 10000, CorePercent: 10})
	require.NoError(t, s.Ledger.Release(context.Background(), "c-done"))
	s.Claim("c-corrupt", "corrupt", grant.Share{UUID: nodetest.H200, MemoryMiB: 2000, CorePercent: 5})
	require.NoError(t, os.WriteFile(s.Path("c-corrupt", "grant.json"), []byte("{"), 0o600))
	return s
}

func TestStatusTable(t *testing.T) {
	status, out, stderr := gpuslice("status", "--state-dir", busyNode(t).Dir)
	assert.Equal(t, exitDone, status)
	assert.Empty(t, stderr)
	table, problems, _ := strings.Cut(out, "\nproblem: ")
	assert.Equal(t, `GPU  MODEL        UUID                                      CONTAINERS  MEMORY GRANTED    CORES GRANTED  MEMORY USED
0    NVIDIA H200  GPU-00000001-5151-4000-8000-000000000001  2/10        42960/143771 MiB  35/100 %       30001 MiB
1    Tesla T4     GPU-00000002-5151-4000-8000-000000000002  2/10        9000/15360 MiB    50/100 %       1001 MiB

POD              CONTAINER  STATE     GPU  MEMORY USED              CORES  PROCESSES  ENFORCEMENT
-                c-corrupt  corrupt   0    0/2000 MiB               5 %    0          -
default/done     main       released  0    0/10000 MiB              10 %   0          preload
default/hostile  main       active    1    17592186044416/1000 MiB  50 %   1          preload
default/train    main       active    0    30001/40960 MiB          30 %   2          preload
default/train    main       active    1    1/8000 MiB               -      1          preload
`, table)
	assert.Contains(t, problems, "container c-corrupt: read grant.json of container c-corrupt: ")
	assert.Equal(t, 1, strings.Count(problems, "\n"))
}

// The formats of status.
func TestStatusForms(t *testing.T) {
	s, _, _ := workingNode(t)
	dir := s.Dir
	golden.Check(t, "testdata/status-wide.txt", without(s, shows(t, "status", "-o", "wide", "--state-dir", dir)))
	golden.Check(t, "testdata/status.yaml", without(s, shows(t, "status", "-o", "yaml", "--state-dir", dir)))
	golden.Check(t, "testdata/status-colors.txt", without(s, shows(t, "status", "--color", "always", "--state-dir", dir)))
	golden.Check(t, "testdata/status-unhealthy.txt", shows(t, "status", "--state-dir", pcieNode(t).Dir))
}

// Control characters in names do not reach the terminal.
func TestStatusCleansNames(t *testing.T) {
	var out strings.Builder
	n := view.Node{
		GPUs:       []view.GPU{{UUID: "GPU-1", Model: "H200\x1b[2J", Healthy: false, Unhealthy: "bad\x1b]0;x\a"}},
		Containers: []view.Container{{Name: "main\x1b[1A", Pod: "a/b\r", State: "active\n", Shares: []view.Share{{UUID: "\u009b2J"}}}},
		Problems:   []string{"container \x1b[31m"},
	}
	require.NoError(t, statusTables(page{Writer: &out}, n))
	for _, r := range out.String() {
		assert.True(t, r == '\n' || !unicode.IsControl(r), "%q", out.String())
	}
}

func TestStatusTableOfAnEmptyNode(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "node.json")))
	status, out, _ := gpuslice("status", "--state-dir", s.Dir)
	assert.Equal(t, exitDone, status)
	assert.Contains(t, out, "\n(no GPUs)\n")
	assert.Contains(t, out, "\n(none)\n")
	assert.Contains(t, out, "\nproblem: GPUs: ")
	assert.Contains(t, out, "has gpuslice-agent run on this node")
}

// What gpuslice verify found is shown where it has run.
func TestStatusOfAVerifiedNode(t *testing.T) {
	var out strings.Builder
	n := view.Node{}
	require.NoError(t, statusTables(page{Writer: &out}, n))
	assert.NotContains(t, out.String(), "isolation")
	n.Verification = &view.Verification{Status: "True", Message: "verified with\x1b[1mdriver 1"}
	require.NoError(t, statusTables(page{Writer: &out}, n))
	assert.Contains(t, out.String(), "\nisolation: verified with?[1mdriver 1\n")
}

// A blocking container is shown with its GPUs and the reason.
func TestStatusOfABlockingContainer(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, s.Ledger.Block(context.Background(), "c-all", ledger.OwnerNRI, "the kubelet is down"))
	require.NoError(t, s.Ledger.Block(context.Background(), "c-two", ledger.OwnerNRI, "no annotation", nodetest.H200, nodetest.T4))
	status, out, _ := gpuslice("status", "--state-dir", s.Dir)
	assert.Equal(t, exitDone, status)
	assert.Contains(t, out, `
POD  CONTAINER  STATE     GPU  MEMORY USED  CORES  PROCESSES  ENFORCEMENT
-    c-all      blocking  all  -            -      -          -
-    c-two      blocking  0,1  -            -      -          -

problem: container c-all: its grant can't be read; reserving nothing else on this node: the kubelet is down

problem: container c-two: its grant can't be read; reserving nothing else on `+nodetest.H200+", "+nodetest.T4+": no annotation\n")
	_, out, _ = gpuslice("status", "-o", "json", "--state-dir", s.Dir)
	assert.Contains(t, out, `"state": "blocking"`)
	assert.Contains(t, out, `"blocks": [`)
}

func TestStatusJSON(t *testing.T) {
	s := busyNode(t)
	status, out, stderr := gpuslice("status", "-o", "json", "--state-dir", s.Dir)
	assert.Equal(t, exitDone, status)
	assert.Empty(t, stderr)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Len(t, got["problems"], 1)
	delete(got, "problems")
	text, err := json.Marshal(got)
	require.NoError(t, err)
	assert.JSONEq(t, `{
		"name": "node-1", "driverVersion": "575.57.08", "cudaVersion": "12.9", "gpusReadAt": "2026-01-02T03:04:05Z",
		"gpus": [
			{"uuid": "GPU-00000001-5151-4000-8000-000000000001", "index": 0, "model": "NVIDIA H200", "memoryMiB": 143771,
			 "grantableMemoryMiB": 143771, "grantedMemoryMiB": 42960, "grantableCores": 100, "grantedCores": 35,
			 "grantableContainers": 10, "containers": 2, "usedBytes": 31458328576, "healthy": true},
			{"uuid": "GPU-00000002-5151-4000-8000-000000000002", "index": 1, "model": "Tesla T4", "memoryMiB": 15360,
			 "grantableMemoryMiB": 15360, "grantedMemoryMiB": 9000, "grantableCores": 100, "grantedCores": 50,
			 "grantableContainers": 10, "containers": 2, "usedBytes": 1048576001, "healthy": true}],
		"containers": [
			{"containerID": "c-corrupt", "container": "", "owner": "", "state": "corrupt", "enforcement": "", "createdAt": "0001-01-01T00:00:00Z",
			 "shares": [{"uuid": "GPU-00000001-5151-4000-8000-000000000001", "memoryMiB": 2000, "cores": 5, "usedBytes": 0, "contextBytes": 0, "residueBytes": 0, "processes": 0, "computeNs": 0, "throttledNs": 0, "launches": 0, "refusedAllocations": 0}]},
			{"containerID": "c-done", "pod": "default/done", "podUID": "uid-done", "container": "main", "owner": "nri", "state": "released", "enforcement": "preload", "createdAt": "2026-01-02T03:04:05Z",
			 "shares": [{"uuid": "GPU-00000001-5151-4000-8000-000000000001", "memoryMiB": 10000, "cores": 10, "usedBytes": 0, "contextBytes": 0, "residueBytes": 0, "processes": 0, "computeNs": 0, "throttledNs": 0, "launches": 0, "refusedAllocations": 0}]},
			{"containerID": "c-hostile", "pod": "default/hostile", "podUID": "uid-hostile", "container": "main", "owner": "nri", "state": "active", "enforcement": "preload", "createdAt": "2026-01-02T03:04:05Z",
			 "shares": [{"uuid": "GPU-00000002-5151-4000-8000-000000000002", "memoryMiB": 1000, "cores": 50, "usedBytes": 18446744073709551615, "contextBytes": 0, "residueBytes": 0, "processes": 1, "computeNs": 0, "throttledNs": 0, "launches": 0, "refusedAllocations": 0}]},
			{"containerID": "c-train", "pod": "default/train", "podUID": "uid-train", "container": "main", "owner": "nri", "state": "active", "enforcement": "preload", "createdAt": "2026-01-02T03:04:05Z",
			 "shares": [
				{"uuid": "GPU-00000001-5151-4000-8000-000000000001", "memoryMiB": 40960, "cores": 30, "usedBytes": 31458328576, "contextBytes": 0, "residueBytes": 0, "processes": 2, "computeNs": 0, "throttledNs": 0, "launches": 0, "refusedAllocations": 0},
				{"uuid": "GPU-00000002-5151-4000-8000-000000000002", "memoryMiB": 8000, "cores": 0, "usedBytes": 1, "contextBytes": 0, "residueBytes": 0, "processes": 1, "computeNs": 0, "throttledNs": 0, "launches": 0, "refusedAllocations": 0}]}]
	}`, string(text))
}

// A missing directory is an error with a hint, and is not created.
func TestStatusWithoutAStateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpuslice")
	status, out, stderr := gpuslice("status", "--state-dir", dir)
	assert.Equal(t, exitFailed, status)
	assert.Empty(t, out)
	assert.Equal(t, "gpuslice: read ledger "+dir+": open "+dir+"/containers: no such file or directory: has gpuslice-agent run on this node? (set --state-dir to its directory)\n", stderr)
	assert.NoDirExists(t, dir)

	t.Setenv("GPUSLICE_STATE_DIR", dir)
	status, _, stderr = gpuslice("status")
	assert.Equal(t, exitFailed, status, "the variable is read")
	assert.Contains(t, stderr, dir)
}

func TestWrongCalls(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "-o", "xml"}, `--output: unknown format "xml": use table, wide, json, yaml, jsonpath, go-template or name`},
		{[]string{"status", "-o", ""}, `--output: unknown format ""`},
		{[]string{"status", "--color", "yes"}, `"--color" flag: unknown value "yes": use auto, always or never`},
		{[]string{"status", "--nope"}, "--nope"},
		{[]string{"status", "node-1"}, "node-1"},
		{[]string{"stats"}, "stats"},
		{[]string{"doctor", "-o", "wide"}, `--output: unknown format "wide": use table, json, yaml, jsonpath or go-template`},
		{[]string{"doctor", "node-1"}, "node-1"},
		{[]string{"doctor", "--root", "/no/such/directory"}, "--root: open /no/such/directory"},
		{[]string{"doctor", "--root", "a", "--state-dir", "b", "--runtime-socket", "c", "--cdi-spec-dirs", "/d,e"}, `--runtime-socket: "c" is not an absolute path`},
		{[]string{"doctor", "--runtime-config", ""}, `--runtime-config: "" is not an absolute path`},
		{[]string{"doctor", "--kubelet-dir", "x"}, `--kubelet-dir: "x"`},
		{[]string{"doctor", "--library-dir", "x"}, `--library-dir: "x"`},
	} {
		status, out, stderr := gpuslice(test.args...)
		assert.Equal(t, exitUsage, status, "%v", test.args)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
	for args, want := range map[string]string{
		"status foo":                     "unexpected arguments (foo): use gpuslice status",
		"describe gpu":                   "an argument is missing: use gpuslice describe gpu [NODE] UUID|INDEX",
		"cordon":                         "an argument is missing: use gpuslice cordon [NODE] GPU",
		"resize":                         "an argument is missing: use gpuslice resize CONTAINER | NAMESPACE/POD[:CONTAINER]",
		"resize a b":                     "unexpected arguments (a b): use gpuslice resize",
		"resize x --cores many":          `--cores: "many" is not valid: use a whole number`,
		"resize x --cores 1 --timeout 5": `--timeout: "5" is not valid: use a time with its unit, such as 30s or 5m`,
		"install":                        "an argument is missing: use gpuslice install docker|containerd|podman",
		"drain a b --grace-period soon":  `--grace-period: "soon" is not valid: use a time with its unit`,
	} {
		status, _, stderr := gpuslice(strings.Fields(args)...)
		assert.Equal(t, exitUsage, status, args)
		assert.Contains(t, stderr, want)
		assert.NotContains(t, stderr, "strconv")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	status, _, stderr := gpuslice("explain", "x")
	assert.Equal(t, exitFailed, status)
	assert.Equal(t, "gpuslice: there is no kubeconfig: set --kubeconfig, --context or KUBECONFIG\n", stderr)

	// As in kubectl, a grace period without a unit is in seconds.
	grace := seconds{}
	for text, want := range map[string]time.Duration{"30": 30 * time.Second, "1m": time.Minute, "-1": -time.Second} {
		require.NoError(t, grace.Set(text))
		assert.Equal(t, want, grace.Duration)
	}

	t.Setenv("GPUSLICE_OUTPUT", "xml")
	status, _, stderr = gpuslice("status")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, stderr, `--output: unknown format "xml"`)
}

// A closed output is a failure.
func TestStatusToAClosedOutput(t *testing.T) {
	dir := busyNode(t).Dir
	for _, form := range []string{"table", "wide", "json", "yaml"} {
		var stderr bytes.Buffer
		assert.Equal(t, exitFailed, execute(context.Background(), []string{"status", "-o", form, "--state-dir", dir}, closedOutput{}, &stderr))
		assert.Contains(t, stderr.String(), "output closed")
	}
}

type closedOutput struct{}

func (closedOutput) Write([]byte) (int, error) { return 0, errors.New("output closed") }

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"status", "--help"}, {"doctor", "--help"}, {"cdi", "generate", "--help"},
		{"top", "--help"}, {"topology", "--help"}, {"describe", "--help"}, {"describe", "gpu", "--help"}, {"describe", "container", "--help"}, {"completion", "--help"}} {
		status, out, stderr := gpuslice(args...)
		assert.Equal(t, exitDone, status, "%v", args)
		assert.Empty(t, stderr)
		assert.Contains(t, out, "Exit status:")
		assert.Contains(t, out, "  --state-dir DIR\n        Read the agent's state from the directory DIR.\n        (GPUSLICE_STATE_DIR; default \"/run/gpuslice\")\n")
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
		}
	}
	_, out, _ := gpuslice("--help")
	assert.Contains(t, out, "\n  status ")
	assert.Contains(t, out, "\n  doctor ")
	_, out, _ = gpuslice("status", "--help")
	assert.Contains(t, out, "  -o, --output FORMAT\n        Print as FORMAT: table, wide, json, yaml, jsonpath, go-template or name.\n        A template follows after =.\n        (GPUSLICE_OUTPUT; default \"table\")\n")
}

func TestVersion(t *testing.T) {
	for _, call := range []string{"--version", "version"} {
		status, out, _ := gpuslice(call)
		assert.Equal(t, exitDone, status)
		assert.Equal(t, "gpuslice version "+version.String()+"\n", out)
	}
}

// shows runs a command that must succeed, and returns what it prints.
func shows(t *testing.T, args ...string) string {
	t.Helper()
	status, out, stderr := gpuslice(args...)
	require.Equal(t, exitDone, status, stderr)
	require.Empty(t, stderr)
	return out
}

const (
	shellState  = "cursor 1 page 0 wrap 1"
	screenState = "cursor 0 page 1 wrap 1"
)
