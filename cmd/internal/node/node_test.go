package node_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/node"
	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
)

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	want := node.File{
		Name: "n", AgentVersion: "v1", WrittenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Scaling: node.Scaling{Slots: 10, Memory: 1, Cores: 1},
		Node:    gpu.Node{DriverVersion: "575", Cards: []gpu.Card{{UUID: "GPU-1", MemoryMiB: 1000}}},
	}
	require.NoError(t, node.Write(dir, want))
	got, err := node.Read(dir)
	require.NoError(t, err)
	want.Version = 1
	require.Equal(t, want, got)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

func TestReadErrors(t *testing.T) {
	for _, test := range []struct{ description, content, want string }{
		{"no file", "", "has gpuslice-agent run"},
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

func TestWriteToAFolderThatIsNotThere(t *testing.T) {
	require.ErrorContains(t, node.Write("/nonexistent", node.File{}), "node.json")
}

func TestCapacities(t *testing.T) {
	n := gpu.Node{Cards: []gpu.Card{{UUID: "GPU-1", MemoryMiB: 1000}, {UUID: "GPU-2", MemoryMiB: 333}}}
	require.Equal(t, map[string]grant.Card{
		"GPU-1": {UUID: "GPU-1", MemoryMiB: 1500, CorePercent: 200, Slots: 3},
		"GPU-2": {UUID: "GPU-2", MemoryMiB: 499, CorePercent: 200, Slots: 3},
	}, node.Scaling{Slots: 3, Memory: 1.5, Cores: 2}.Capacities(n))
}
