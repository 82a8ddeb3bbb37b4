//go:build root

// Package node tests the whole node half of gpuslice end to end: real containerd,
// runc and NRI, the agent as a process, containers made through CRI, the simulated
// driver as their GPU and the limiter inside them. What a container may do is
// asked inside it, not read from its spec.
package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// workload is the path of a CUDA workload inside the images.
func workload(name string) string { return harness.WorkloadDir + "/" + name }

// newNode brings a node up and takes it down at the test's end.
func newNode(t testing.TB, o harness.NodeOptions) *harness.Node {
	n, err := harness.NewNode(context.Background(), o)
	t.Cleanup(func() {
		if t.Failed() {
			if n.Agent != nil {
				t.Logf("the agent's log:\n%s", n.Agent.LogTail(60))
			}
		}
		if err := n.Close(context.Background()); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	require.NoError(t, err)
	return n
}

// GPU is the UUID of a node's GPU.
func gpu(t testing.TB, n *harness.Node, index int) string {
	s, err := n.Status(context.Background())
	require.NoError(t, err)
	require.Greater(t, len(s.GPUs), index)
	return s.GPUs[index].UUID
}

// hami annotates a pod of one container as HAMi's scheduler does.
func hami(uuid string, mib, cores int) map[string]string {
	return map[string]string{"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,%d:;", uuid, mib, cores)}
}

// named annotates a pod with our own grants by container name: share by name.
func named(shares map[string]string) map[string]string {
	containers := map[string]json.RawMessage{}
	for name, share := range shares {
		containers[name] = json.RawMessage(share)
	}
	data, err := json.Marshal(map[string]any{"version": 1, "node": harness.NodeName, "containers": containers})
	if err != nil {
		panic(err)
	}
	return map[string]string{"gpuslice.io/grant": string(data)}
}

func share(uuid string, mib, cores int) string {
	return fmt.Sprintf(`[{"uuid":%q,"memoryMiB":%d,"cores":%d}]`, uuid, mib, cores)
}

// run runs a pod and fails the test if it can't.
func run(t testing.TB, n *harness.Node, p harness.Pod) *harness.Sandbox {
	s, err := n.RunPod(context.Background(), p)
	require.NoError(t, err)
	return s
}

func start(t testing.TB, s *harness.Sandbox, c harness.Container) string {
	id, err := s.Start(context.Background(), c)
	require.NoError(t, err)
	return id
}

// exec runs a workload in a container and returns its key=value lines.
func exec(t testing.TB, n *harness.Node, id string, command ...string) map[string]string {
	stdout, stderr, code, err := n.Exec(context.Background(), id, command...)
	require.NoError(t, err)
	require.Zero(t, code, "%s: %s%s", strings.Join(command, " "), stdout, stderr)
	return harness.KeyValues(stdout)
}

func number(t testing.TB, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// waitReady waits until a container's workload has printed ready=1.
func waitReady(t testing.TB, s *harness.Sandbox, c harness.Container) {
	err := harness.Until(context.Background(), time.Minute, func(context.Context) error {
		log, err := s.Logs(c)
		if err == nil && harness.KeyValues(log)["ready"] != "1" {
			err = fmt.Errorf("not ready: %s", log)
		}
		return err
	})
	require.NoError(t, err)
}

// spec reads the OCI spec that runc was given.
func spec(t testing.TB, n *harness.Node, id string) *rspec.Spec {
	spec, err := n.Spec(context.Background(), id)
	require.NoError(t, err)
	return spec
}

// requireNothingLeft checks that no container of gpuslice's is left anywhere.
func requireNothingLeft(t testing.TB, n *harness.Node) {
	s, err := n.Status(context.Background())
	require.NoError(t, err)
	require.Empty(t, s.Containers, "ledger")
	for _, c := range s.GPUs {
		require.Zero(t, c.GrantedMemoryMiB, c.UUID)
		require.Zero(t, c.GrantedCores, c.UUID)
		require.Zero(t, c.Containers, c.UUID)
	}
	dirs, err := os.ReadDir(filepath.Join(n.StateDir(), "containers"))
	require.NoError(t, err)
	require.Empty(t, dirs, "directories")
	mounts, err := harness.ClaimMounts(n.StateDir())
	require.NoError(t, err)
	require.Equal(t, []string{n.StateDir()}, mounts, "mounts")
}

const mib = 1 << 20

// contextMiB is what a CUDA context takes of an H200: by the simulated driver, and by
// what the agent charges for it.
const contextMiB = 520
