//go:build attacks

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
)

const (
	mib = 1 << 20
	// contextMiB is what a CUDA context takes of an H200.
	contextMiB = 520
	// patience bounds what only has to happen.
	patience = 30 * time.Second
)

// workload is the path of a program inside the images.
func workload(name string) string { return harness.WorkloadDir + "/" + name }

// newNode starts a node with containerd and the agent, for the test's time.
func newNode(t testing.TB, o harness.NodeOptions) *harness.Node {
	n, err := harness.NewNode(context.Background(), o)
	t.Cleanup(func() {
		if t.Failed() && n.Agent != nil {
			t.Logf("the agent's log:\n%s", n.Agent.LogTail(60))
		}
		if err := n.Close(context.Background()); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	require.NoError(t, err)
	return n
}

// gpu is the UUID of a node's GPU.
func gpu(t testing.TB, n *harness.Node, index int) string {
	s, err := n.Status(context.Background())
	require.NoError(t, err)
	require.Greater(t, len(s.GPUs), index)
	return s.GPUs[index].UUID
}

// granted annotates a pod with a share of a GPU for its container "main".
func granted(uuid string, memoryMiB, cores int) map[string]string {
	data, err := json.Marshal(map[string]any{"version": 1, "node": harness.NodeName, "containers": map[string]any{
		"main": []any{map[string]any{"uuid": uuid, "memoryMiB": memoryMiB, "cores": cores}},
	}})
	if err != nil {
		panic(err)
	}
	return map[string]string{"gpuslice.io/grant": string(data)}
}

// until waits for something that only has to happen.
func until(t testing.TB, probe func(ctx context.Context) error) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), patience, probe))
}

// wait waits until the container "main" of a pod has written that line.
func wait(t testing.TB, s *harness.Sandbox, key, value string) {
	t.Helper()
	until(t, func(context.Context) error {
		log, err := s.Logs(harness.Container{Name: "main"})
		if err == nil && harness.KeyValues(log)[key] != value {
			err = fmt.Errorf("no %s=%s: %s", key, value, log)
		}
		return err
	})
}

// run runs a pod with one container "main", and returns the pod and the container's ID.
func run(t testing.TB, n *harness.Node, p harness.Pod, c harness.Container) (*harness.Sandbox, string) {
	t.Helper()
	s, err := n.RunPod(context.Background(), p)
	require.NoError(t, err)
	c.Name = "main"
	id, err := s.Start(context.Background(), c)
	require.NoError(t, err)
	return s, id
}

// attack runs a pod with a share and a container that attacks by testdata/workloads/attack.c,
// and waits until the attack is in place.
func attack(t testing.TB, n *harness.Node, p harness.Pod, c harness.Container, name, path string) (*harness.Sandbox, string) {
	t.Helper()
	c.Command = []string{workload("attack"), name, path}
	s, id := run(t, n, p, c)
	wait(t, s, "ready", "1")
	return s, id
}

// exec runs a workload in a container and returns its key=value lines.
func exec(t testing.TB, n *harness.Node, id string, command ...string) map[string]string {
	t.Helper()
	stdout, stderr, code, err := n.Exec(context.Background(), id, command...)
	require.NoError(t, err)
	require.Zero(t, code, "%v: %s%s", command, stdout, stderr)
	return harness.KeyValues(stdout)
}

// metrics is the address of an agent's metrics.
type metrics string

// freeMetrics is an address that is free. The test and an agent that is started again have to know it.
func freeMetrics(t testing.TB) metrics {
	return metrics(loopback.FreeAddress(t))
}

// option is the agent's option for this address.
func (m metrics) option() string { return "--metrics-address=" + string(m) }

// all are the metrics without a timestamp, by name and labels.
func (m metrics) all(ctx context.Context) (map[string]float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(m)+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if end := strings.LastIndexByte(line, ' '); end > 0 && line[0] != '#' {
			if all[line[:end]], err = strconv.ParseFloat(line[end+1:], 64); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// violations are how many violations of a kind last.
func (m metrics) violations(ctx context.Context, kind string) (float64, error) {
	all, err := m.all(ctx)
	if err != nil {
		return 0, err
	}
	found, known := all[`gpuslice_violations{kind="`+kind+`"}`]
	if !known {
		return 0, fmt.Errorf("no gpuslice_violations of kind %s", kind)
	}
	return found, nil
}
