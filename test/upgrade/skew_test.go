package upgrade_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
	"github.com/gpuslice/gpuslice/test/upgrade"
)

// described is a node with all that an agent writes of it.
func described() noderegister.Node {
	device := func(uuid, model string, index, numa int, mib int64) noderegister.Device {
		return noderegister.Device{
			GPU:      nvidia.GPU{UUID: uuid, Model: model, Index: index, NUMANode: numa, MemoryMiB: mib, ComputeCapability: "9.0"},
			Replicas: 10, MemoryMiB: mib, CorePercent: 100, Healthy: index == 0, Others: api.NodeUse{MemoryMiB: 1000, Cores: 10, Replicas: 1},
		}
	}
	return noderegister.Node{
		Devices: []noderegister.Device{device(first, "NVIDIA H200", 0, 0, 143771), device(second, "NVIDIA A100-SXM4-80GB", 1, nvidia.NUMAUnknown, 81920)},
		Topology: nvidia.Topology{UUIDs: []string{first, second}, Pairs: [][]nvidia.Pair{
			{{}, {Level: nvidia.LevelSwitch, NVLinks: 18}}, {{Level: nvidia.LevelSwitch, NVLinks: 18}, {}},
		}},
		Refused: []api.RefusedPod{{UID: podUID, Container: "main", Reason: "overbooked"}},
	}
}

// What this agent writes of its GPUs, a scheduler of the version before reads.
func TestGPUsForTheVersionBefore(t *testing.T) {
	got, err := upgrade.ReadGPUs1(noderegister.Render(described(), noderegister.Options{}).Annotations[api.AnnotationNodeGPUs])
	require.NoError(t, err)
	require.Len(t, got.GPUs, 2)
	for i, want := range described().Devices {
		gpu := got.GPUs[i]
		require.Equal(t, []any{want.GPU.UUID, want.GPU.Model, i, want.MemoryMiB, want.CorePercent, want.Replicas, want.Healthy},
			[]any{gpu.UUID, gpu.Model, gpu.Index, *gpu.MemoryMiB, *gpu.Cores, *gpu.Replicas, *gpu.Healthy})
	}
	require.Equal(t, 0, *got.GPUs[0].NUMA)
	require.Nil(t, got.GPUs[1].NUMA)
	require.Equal(t, [][]int{{0, 1850}, {1850, 0}}, got.Links)
}

// An agent of the version after may write more: this scheduler reads what it knows.
func TestGPUsOfTheVersionAfter(t *testing.T) {
	read := func(text string) scheduler.Inventory {
		inventory, warning, err := wire.DecodeNode(&scheduler.Node{Name: "node-1", Annotations: map[string]string{api.AnnotationNodeGPUs: text}})
		require.NoError(t, err)
		require.NoError(t, warning)
		return inventory
	}
	recorded := text(t, golden(versions[len(versions)-1], "node-gpus"))
	var later map[string]any
	require.NoError(t, json.Unmarshal([]byte(recorded), &later))
	later["later"] = map[string]any{"a": 1}
	for _, gpu := range later["gpus"].([]any) {
		maps.Copy(gpu.(map[string]any), map[string]any{"later": []int{1}, "isolation": "later"})
	}
	written, err := json.Marshal(later)
	require.NoError(t, err)
	require.Equal(t, read(recorded), read(string(written)), "an isolation that is not known counts as none")
}

// The agent that runs after an upgrade or a rollback has the ResourceClaims that the other one prepared, and the pods that it
// refused are those that schedulers of both read.
func TestPreparedAndRefused(t *testing.T) {
	const uid = "22222222-2222-4222-8222-222222222222"
	record := prepared.Record{UID: uid, Namespace: "team", Name: "claim", Requests: map[string][]grant.Share{
		"gpu": {{UUID: first, MemoryMiB: 3000, CorePercent: 30}}, "whole": {{UUID: second, MemoryMiB: 81920, CorePercent: 100}},
	}}
	for _, version := range versions {
		recorded, err := os.ReadFile(golden(version, "prepared", uid+".json"))
		require.NoError(t, err)
		dir := t.TempDir()
		store, err := prepared.Open(dir)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(store.Path(uid), recorded, 0o600))
		got, err := store.Read(uid)
		require.NoError(t, err, version)
		require.True(t, record.Same(got), version)

		var refused []api.RefusedPod
		require.NoError(t, json.Unmarshal([]byte(text(t, golden(version, "refused-pods"))), &refused))
		require.Equal(t, described().Refused, refused, version)
	}
	store, err := prepared.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, store.Write(record))
	written, err := os.ReadFile(store.Path(uid))
	require.NoError(t, err)
	before, err := upgrade.ReadPrepared1(written)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu", "whole"}, slices.Sorted(maps.Keys(before.Requests)))
	require.Equal(t, []any{uid, "team", "claim", first, int64(3000), 30}, []any{before.UID, before.Namespace, before.Name,
		before.Requests["gpu"][0].UUID, *before.Requests["gpu"][0].MemoryMiB, *before.Requests["gpu"][0].Cores})
	require.JSONEq(t, text(t, golden("1", "refused-pods")), noderegister.Render(described(), noderegister.Options{}).Annotations[api.AnnotationNodeRefused])
}

// kubectl gpuslice of one version shows the nodes of agents of another: no field is renamed, and further ones are ignored.
func TestView(t *testing.T) {
	for _, version := range versions {
		recorded, err := os.ReadFile(golden(version, "view.json"))
		require.NoError(t, err)
		var node view.Node
		require.NoError(t, json.Unmarshal(recorded, &node), version)
		again, err := json.Marshal(node)
		require.NoError(t, err)
		var was, is any
		require.NoError(t, json.Unmarshal(recorded, &was))
		require.NoError(t, json.Unmarshal(again, &is))
		requireHas(t, filepath.Join(version, "view.json"), was, is)
	}
}

// requireHas requires all fields of JSON, with their values, in other JSON.
func requireHas(t *testing.T, at string, was, is any) {
	t.Helper()
	switch was := was.(type) {
	case map[string]any:
		require.IsType(t, was, is, at)
		for key, value := range was {
			require.Contains(t, is, key, at)
			requireHas(t, at+"."+key, value, is.(map[string]any)[key])
		}
	case []any:
		require.Len(t, is, len(was), at)
		for i, value := range was {
			requireHas(t, at, value, is.([]any)[i])
		}
	default:
		require.Equal(t, was, is, at)
	}
}
