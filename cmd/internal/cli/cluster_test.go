package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// asPlugin makes the calls those of kubectl-gpuslice.
func asPlugin(t *testing.T) {
	plugin = true
	t.Cleanup(func() { plugin = false })
}

// noKubeconfig leaves only the connection that a call names.
func noKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
}

// unreachable is a kubeconfig of an API server that does not run.
func unreachable(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: team-a}}, {name: other, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
`), 0o600))
	return path
}

// All commands with requests to agents and schedulers have --system-namespace, also as a variable.
func TestSystemNamespace(t *testing.T) {
	t.Setenv("GPUSLICE_SYSTEM_NAMESPACE", "gpus")
	for _, name := range []string{"status", "top", "explain", "resize", "defrag", "migrate hami", "topology", "describe gpu", "describe container"} {
		c, _, err := command().Find(strings.Fields(name))
		require.NoError(t, err)
		require.NoError(t, config.Fill(c.Flags(), "", variables, os.LookupEnv))
		assert.Equal(t, "gpus", c.Flags().Lookup("system-namespace").Value.String(), name)
	}
}

func TestPodName(t *testing.T) {
	for text, want := range map[string][3]string{
		"p": {"", "p", ""}, "a/p": {"a", "p", ""}, "a/p:c": {"a", "p", "c"}, "p:c": {"", "p", "c"},
	} {
		namespace, pod, container, err := podName(text)
		require.NoError(t, err)
		assert.Equal(t, want, [3]string{namespace, pod, container}, text)
	}
	for _, text := range []string{"", "/", "a/", "/p", "a/b/c", ":c"} {
		_, _, _, err := podName(text)
		require.ErrorContains(t, err, "use [NAMESPACE/]POD", text)
	}
}

// The call is about this node or the cluster by the rule of --all-nodes.
func TestAllNodes(t *testing.T) {
	s := nodetest.NewStateDir(t)
	noKubeconfig(t)
	kubeconfig := unreachable(t)
	const cluster, here = "127.0.0.1:1", ""
	for _, test := range []struct {
		name   string
		args   []string
		plugin bool
		want   string // of the server or file in the error
	}{
		{"--all-nodes", []string{"--all-nodes", "--state-dir", s.Dir, "--kubeconfig", kubeconfig}, false, cluster},
		{"a state directory that was named", []string{"--state-dir", s.Dir, "--kubeconfig", kubeconfig}, false, here},
		{"as kubectl gpuslice", []string{"--kubeconfig", kubeconfig}, true, cluster},
		{"no such context", []string{"--all-nodes", "--kubeconfig", kubeconfig, "--context", "nowhere"}, false, `context "nowhere" does not exist`},
		{"no kubeconfig", []string{"--all-nodes"}, false, "set --kubeconfig, --context or KUBECONFIG"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.plugin {
				asPlugin(t)
			}
			status, out, stderr := gpuslice(append([]string{"status"}, test.args...)...)
			if test.want == here {
				assert.Equal(t, exitDone, status, stderr)
				assert.Contains(t, out, nodetest.H200)
				return
			}
			assert.Equal(t, exitFailed, status)
			assert.Contains(t, stderr, test.want)
		})
	}
}

// On a machine without an agent and without a kubeconfig the error names the command for the cluster.
func TestNeitherNodeNorCluster(t *testing.T) {
	noKubeconfig(t)
	dir := filepath.Join(t.TempDir(), "gpuslice")
	call := func(args ...string) (status int, stderr string) {
		c := Node()
		require.NoError(t, c.PersistentFlags().Lookup("state-dir").Value.Set(dir)) // in the place of the default
		var out, complaint bytes.Buffer
		status = run(context.Background(), c, args, &out, &complaint)
		assert.Empty(t, out.String())
		return status, complaint.String()
	}
	const neither = "set --state-dir to its directory); for the cluster use kubectl gpuslice %s (here: there is no kubeconfig: set --kubeconfig, --context or KUBECONFIG)\n"
	for args, want := range map[string]string{
		"status":                      fmt.Sprintf(neither, "status"),
		"top --once":                  fmt.Sprintf(neither, "top"),
		"describe container a/p":      fmt.Sprintf(neither, "describe container"),
		"status --context nowhere":    `context "nowhere" does not exist`,
		"topology":                    "for a node of the cluster use kubectl gpuslice topology NODE\n",
		"describe gpu 0":              "for a node of the cluster use kubectl gpuslice describe gpu NODE\n",
		"status --all-nodes=false":    "set --state-dir to its directory)\n",
		"topology --state-dir " + dir: "set --state-dir to its directory)\n",
		"status --state-dir " + dir:   "set --state-dir to its directory)\n",
	} {
		status, stderr := call(strings.Fields(args)...)
		assert.Equal(t, exitFailed, status, args)
		assert.Contains(t, stderr, "has gpuslice-agent run on this node?", args)
		assert.Contains(t, stderr, want, args)
	}
}

func TestWrongClusterCalls(t *testing.T) {
	noKubeconfig(t)
	kubeconfig := unreachable(t)
	for _, test := range []struct {
		args   []string
		plugin bool
		status int
		want   string
	}{
		{[]string{"resize", "a/p", "--memory=25%", "--kubeconfig", kubeconfig}, false, exitUsage, "use MiB or GiB"},
		{[]string{"resize", "a/b/c", "--cores=1", "--kubeconfig", kubeconfig}, false, exitUsage, "use [NAMESPACE/]POD"},
		{[]string{"resize", "a/p", "--cores=1", "--gpu=0", "--kubeconfig", kubeconfig}, false, exitUsage, "must be a GPU's UUID"},
		{[]string{"resize", "p", "--cores=1", "--kubeconfig", kubeconfig}, true, exitFailed, "pod team-a/p: "},
		{[]string{"explain", "a/p:c", "--kubeconfig", kubeconfig}, false, exitUsage, "remove :c"},
		{[]string{"explain", "p", "-n", "team-b", "--kubeconfig", kubeconfig}, false, exitFailed, "pod team-b/p: "},
		{[]string{"cordon", "0"}, true, exitUsage, "add the argument NODE"},
		{[]string{"drain", "0"}, true, exitUsage, "add the argument NODE"},
		{[]string{"cordon", "n1", "0", "--kubeconfig", kubeconfig}, false, exitFailed, "node n1: "},
		{[]string{"drain", "n1", "0", "--kubeconfig", kubeconfig}, false, exitFailed, "node n1: "},
		// A wrong call is found without a cluster.
		{[]string{"explain", "a/b/c"}, false, exitUsage, "use [NAMESPACE/]POD"},
		{[]string{"explain", "a/p:c"}, false, exitUsage, "remove :c"},
		{[]string{"explain", "p"}, false, exitFailed, "set --kubeconfig"},
		{[]string{"resize", "x/", "--memory=1GiB"}, false, exitUsage, "use [NAMESPACE/]POD"},
		{[]string{"resize", "x/p", "--memory=1GiB"}, false, exitFailed, "set --kubeconfig"},
		{[]string{"drain"}, false, exitUsage, "an argument is missing: use gpuslice drain [NODE] GPU"},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			if test.plugin {
				asPlugin(t)
			}
			status, out, stderr := gpuslice(test.args...)
			assert.Equal(t, test.status, status, stderr)
			assert.Contains(t, stderr, test.want)
			assert.Empty(t, out)
		})
	}
}

func TestDrainOfThisNodesGPU(t *testing.T) {
	s := dockerNode(t)
	status, out, _ := gpuslice("drain", "0", "--dry-run", "--state-dir", s.Dir)
	assert.Equal(t, exitDone, status)
	assert.Contains(t, out, "would get no new containers on this node\nin use by container 3f2a0002\n")
	assert.NoFileExists(t, filepath.Join(s.Dir, "cordoned"))
	status, _, stderr := gpuslice("drain", "0", "--state-dir", s.Dir)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "containers still use the GPU")
	assert.FileExists(t, filepath.Join(s.Dir, "cordoned"))
	for _, id := range []string{"3f2a9c01", "3f2a0002"} {
		require.NoError(t, s.Ledger.Remove(t.Context(), id))
	}
	status, _, _ = gpuslice("drain", "0", "--state-dir", s.Dir)
	assert.Equal(t, exitDone, status)
}
