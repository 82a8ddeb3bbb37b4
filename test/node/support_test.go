//go:build root

package node_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nri-plugin/bounds"
	"github.com/gpuslice/gpuslice/test/harness"
)

// The layers of docs/FAULTS.md's table of supported runtimes that a test can see.
const (
	validates = "validates: a lost request is refused"
	requires  = "pods can require the agent"
	sizes     = "refuses pods that are too large"
)

// refusals are what the errors of these layers have, and no other error.
var refusals = map[string]string{
	validates: `validator plugin 90-gpuslice failed: `,
	requires:  `required plugin "gpuslice" not present`,
	sizes:     `of labels and annotations, and gpuslice allows `,
}

// assertRefused compares an error with what the table has for that layer.
func assertRefused(t *testing.T, refused bool, layer string, err error, name string) {
	t.Helper()
	if !refused {
		assert.NoError(t, err, "%s: %s", layer, name)
		return
	}
	assert.ErrorContains(t, err, refusals[layer], "%s: %s", layer, name)
}

// supportRow returns the row of that table that gpuslice doctor names for the node.
func supportRow(t testing.TB, n *harness.Node) (layers map[string]bool, tested string) {
	// doctor fails: a test's node lacks directories.
	out, _ := n.CLI(context.Background(), "doctor", "kubernetes", "-o", "json", "--runtime-socket", n.Socket())
	var report struct {
		Checks []struct{ Check, Found string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report), out)
	name := regexp.MustCompile(`row "([^"]*)" of the supported runtimes`).FindStringSubmatch(report.Checks[0].Found)
	require.NotNil(t, name, report.Checks[0].Found)

	root, err := harness.Repository()
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "FAULTS.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "## Supported container runtimes")
	require.True(t, found)
	var head []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if cells[0] == "runtime" {
			head = cells
		}
		if cells[0] != name[1] {
			continue
		}
		layers = map[string]bool{}
		for i, cell := range cells[1 : len(cells)-1] {
			layers[head[1+i]] = cell == "yes"
		}
		require.Subset(t, slices.Collect(maps.Keys(layers)), []string{validates, requires, sizes})
		return layers, cells[len(cells)-1]
	}
	require.Fail(t, "no row", name[1])
	return nil, ""
}

// The table of supported runtimes has what this runtime does: whether it refuses a container of which the agent misses the
// request, one that requires an absent agent, and a pod that is too large. A container that it creates all the same has no GPU.
func TestSupportTableIsTrue(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{Containerd: harness.ContainerdOptions{RequestTimeout: time.Second}})
	layers, tested := supportRow(t, n)
	require.NotEqual(t, "not run", tested)
	uuid := gpu(t, n, 0)

	pod, err := n.RunPod(ctx, harness.Pod{Name: "large", Annotations: map[string]string{"example.com/note": strings.Repeat("x", bounds.Pod)}})
	assertRefused(t, layers[sizes], sizes, err, "large")
	if err == nil {
		require.NoError(t, pod.Remove(ctx))
	}
	start := func(t *testing.T, s *harness.Sandbox) error {
		id, err := s.Start(ctx, harness.Container{Name: "main", Image: harness.GreedyImage})
		if err != nil {
			return err
		}
		_, _, code, err := n.Exec(ctx, id, workload("meminfo"))
		require.NoError(t, err)
		require.Equal(t, 4, code, "no driver")
		return nil
	}
	for name, annotations := range map[string]map[string]string{"granted": hami(uuid, 1000, 10), "plain": nil} {
		pod := run(t, n, harness.Pod{Name: name, Annotations: annotations})
		require.NoError(t, n.Agent.Suspend(ctx))
		assertRefused(t, layers[validates], validates, start(t, pod), name)
		require.NoError(t, n.Agent.Signal(syscall.SIGCONT))
		n.Agent.Kill()
		require.NoError(t, pod.Remove(ctx))
		require.NoError(t, n.StartAgent(ctx))
	}
	n.Agent.Kill()
	for name, required := range map[string]bool{"requiring": true, "free": false} {
		pod := harness.Pod{Name: name, Annotations: hami(uuid, 1000, 10)}
		if required {
			pod.Annotations["required-plugins.noderesource.dev"] = `["gpuslice"]`
		}
		s := run(t, n, pod)
		assertRefused(t, layers[requires] && required, requires, start(t, s), name)
		require.NoError(t, s.Remove(ctx))
	}
	require.NoError(t, n.StartAgent(ctx))
	requireNothingLeft(t, n)
}
