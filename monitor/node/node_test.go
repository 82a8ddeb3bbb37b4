package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	want := node.File{
		Name: "n", AgentVersion: "v1", WrittenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Devices: []node.Device{{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1000, CorePercent: 100, Replicas: 10}},
		Node:    nvidia.Node{DriverVersion: "575", GPUs: []nvidia.GPU{{UUID: "GPU-1", MemoryMiB: 1000}}},
	}
	require.NoError(t, node.Write(dir, want))
	got, err := node.Read(dir)
	require.NoError(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	want.BootID = strings.TrimSpace(string(boot))
	want.Version, want.ContextMiB = 2, map[string]int64{"GPU-1": 520}
	require.Equal(t, want, got)
	device, known := got.Device("GPU-1")
	require.True(t, known)
	require.Equal(t, want.Devices[0], device)
	_, known = got.Device("GPU-2")
	require.False(t, known)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

// A topology that is not one is left out: Pair looks up its rows.
func TestReadABadTopology(t *testing.T) {
	for text, want := range map[string]int{
		`{"uuids":["a","b"],"pairs":[[{"level":"SYS"},{"level":"PIX"}],[{"level":"PIX"},{"level":"SYS"}]]}`: 2,
		`{"uuids":["a","b"],"pairs":[[{"level":"SYS"},{"level":"PIX"}],[{"level":"PIX"}]]}`:                 0,
		`{"uuids":["a","b"],"pairs":[]}`: 0,
	} {
		f, err := node.Decode([]byte(`{"version":2,"name":"n","topology":` + text + `}`))
		require.NoError(t, err)
		require.Len(t, f.Topology.UUIDs, want)
		require.Equal(t, "n", f.Name)
	}
}

func TestReadErrors(t *testing.T) {
	for _, test := range []struct{ description, content, want string }{
		{"no file", "", "has gpuslice-agent run on this node"},
		{"not JSON", "{", "node.json"},
		{"another version", `{"version":7}`, "version is 7"},
	} {
		t.Run(test.description, func(t *testing.T) {
			dir := t.TempDir()
			if test.content != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(test.content), 0o600))
			}
			_, err := node.Read(dir)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestWriteToADirThatIsNotThere(t *testing.T) {
	require.ErrorContains(t, node.Write("/nonexistent", node.File{}), "node.json")
}

// A node of docker's has no agent, and its GPUs are known all the same.
func TestReadWithoutAnAgent(t *testing.T) {
	dir := t.TempDir()
	want := node.File{Devices: []node.Device{{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1000, CorePercent: 100, Replicas: 10}}}
	data, err := want.Encode()
	require.NoError(t, err)
	path := filepath.Join(dir, "gpus.json")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"bootID":"x","node":%s}`, data), 0o600))
	got, err := node.Read(dir)
	require.NoError(t, err)
	require.Equal(t, want.Devices, got.Devices)

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = node.Read(dir)
	require.ErrorContains(t, err, path)
}
