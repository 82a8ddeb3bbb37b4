//go:build attacks

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// environment is one of so many bytes, in variables that a process may have.
func environment(bytes int) []string {
	const each = 100_000
	var env []string
	for i := 0; bytes > 0; i++ {
		env = append(env, fmt.Sprintf("LARGE_%d=%s", i, strings.Repeat("x", min(bytes, each))))
		bytes -= each
	}
	return env
}

// requireRefused requires that a container is refused for a reason.
func requireRefused(t *testing.T, n *harness.Node, p harness.Pod, c harness.Container, reason string) {
	t.Helper()
	s, err := n.RunPod(context.Background(), p)
	require.NoError(t, err)
	c.Name = "main"
	_, err = s.Start(context.Background(), c)
	require.ErrorContains(t, err, reason)
	require.NoError(t, s.Remove(context.Background()))
}

// connections is how often the agent has connected to the container runtime since it started.
func connections(t *testing.T, n *harness.Node) int {
	log, err := os.ReadFile(n.Agent.LogPath)
	require.NoError(t, err)
	return strings.Count(string(log), `"connected to the container runtime"`)
}

// An answer about each variable would be above 4 MiB, and the connection would be closed: while
// it is, a container of the runtime class nvidia gets whole GPUs.
func TestVariablesDoNotDisconnectThePlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	for _, test := range []struct {
		count  int
		reason string
	}{{16, "CUDA_DEVICE_MEMORY_LIMIT_"}, {1_000, "CUDA_DEVICE_MEMORY_LIMIT_"}, {7_000, "384 KiB"}, {10_000, "384 KiB"}} {
		var env []string
		for i := range test.count {
			env = append(env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%0225d=1", 16+i))
		}
		for range 3 {
			requireRefused(t, n, harness.Pod{Name: "attacker", Annotations: granted(uuid, 1000, 10)}, harness.Container{Env: env}, test.reason)
		}
	}
	_, id := run(t, n, harness.Pod{Name: "victim", Annotations: granted(uuid, 1000, 10)}, harness.Container{})
	require.Equal(t, "1", exec(t, n, id, workload("meminfo"))["device_count"])
	assert.Equal(t, 1, connections(t, n))
}

// The runtime could not synchronise the agent with such containers, and with fewer than four
// pods it would panic.
func TestLargeEnvironmentsDoNotLockTheAgentOut(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	attacker, err := n.RunPod(ctx, harness.Pod{Name: "attacker"})
	require.NoError(t, err)
	for i := range 10 {
		_, err := attacker.Start(ctx, harness.Container{Name: fmt.Sprint("c", i), Env: environment(1_100_000)})
		require.ErrorContains(t, err, "gpuslice allows 384 KiB")
	}
	// As much as is allowed, by as many pods as are allowed.
	made := 0
	for i := range 8 {
		s, err := n.RunPod(ctx, harness.Pod{Name: fmt.Sprint("large", i)})
		require.NoError(t, err)
		for j := range 4 {
			if _, err := s.Start(ctx, harness.Container{Name: fmt.Sprint("c", j), Env: environment(380_000)}); err == nil {
				made++
			} else {
				require.ErrorContains(t, err, "gpuslice allows 768 KiB")
			}
		}
	}
	assert.Equal(t, 16, made)
	for i := range 3 {
		require.NoError(t, n.RestartAgent(ctx))
		_, id := run(t, n, harness.Pod{Name: fmt.Sprint("victim", i), Annotations: granted(uuid, 1000, 10)}, harness.Container{})
		require.Equal(t, "1", exec(t, n, id, workload("meminfo"))["device_count"])
	}
	n.Containerd.Kill()
	require.NoError(t, n.Containerd.Start(ctx))
	require.NoError(t, n.WaitConnected(ctx))
}

// Pods without containers are in what the runtime lists, too. The runtime undoes those that
// are refused: it starts again, and the pod can be made when it is smaller.
func TestLargeAnnotationsDoNotLockTheAgentOut(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{})
	for i := range 3 { // containerd can release the name of a refused pod later
		_, err := n.RunPod(ctx, harness.Pod{Name: fmt.Sprint("attacker", i), Annotations: map[string]string{"example.com/note": strings.Repeat("x", 250_000)}})
		require.ErrorContains(t, err, "labels and annotations, and gpuslice allows 64 KiB")
	}
	require.NoError(t, n.Containerd.Stop())
	require.NoError(t, n.Containerd.Start(ctx))
	require.NoError(t, n.WaitConnected(ctx))
	run(t, n, harness.Pod{Name: "attacker", Annotations: granted(gpu(t, n, 0), 1000, 10)}, harness.Container{})
}

// Containers that were made while the agent was stopped can keep it from connecting. The agent and the doctor
// report the reason and the containers.
func TestLargeContainersOfBeforeAreNamed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{NoAgent: true})
	var pods []*harness.Sandbox
	for i := range 6 {
		s, _ := run(t, n, harness.Pod{Name: fmt.Sprint("attacker", i)}, harness.Container{Env: environment(1_500_000)})
		pods = append(pods, s)
	}
	require.NoError(t, n.LaunchAgent())
	until(t, func(ctx context.Context) error {
		if body := readiness(ctx, n); !strings.Contains(body, "large-containers") {
			return fmt.Errorf("/readyz returned %s", body)
		}
		return nil
	})
	require.Contains(t, n.Agent.LogTail(20), "too large for NRI's messages")

	program, err := harness.Artefact("bin", "gpuslice")
	require.NoError(t, err)
	out, _ := harness.Run(ctx, nil, program, "doctor", "kubernetes", "-o", "json",
		"--runtime-config", filepath.Join(n.Containerd.Dir, "config.toml"), "--state-dir", n.StateDir())
	var report struct {
		Checks []struct{ Check, State, Found string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report), out)
	found := ""
	for _, c := range report.Checks {
		if c.Check == "large-containers" && c.State == "fail" {
			found = c.Found
		}
	}
	for i := range pods {
		require.Contains(t, found, fmt.Sprintf("(main) of pod default/attacker%d has", i))
	}

	for _, s := range pods {
		require.NoError(t, s.Remove(ctx))
	}
	began := time.Now()
	require.NoError(t, n.WaitConnected(ctx))
	t.Logf("connected %v after the pods were removed", time.Since(began))
}

// readiness is the text of the agent's /readyz.
func readiness(ctx context.Context, n *harness.Node) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HealthAddress()+"/readyz", nil)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}
