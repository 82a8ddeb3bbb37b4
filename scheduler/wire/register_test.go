package wire

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/scheduler"
)

// genNode draws a node as its agent knows it.
var genNode = rapid.Custom(func(t *rapid.T) noderegister.Node {
	n := noderegister.Node{}
	linked := rapid.Bool().Draw(t, "topology is known")
	for i := range rapid.IntRange(1, 16).Draw(t, "gpus") {
		uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000%x", rapid.Uint32().Draw(t, "uuid"), i)
		n.Devices = append(n.Devices, noderegister.Device{
			GPU: nvidia.GPU{
				UUID: uuid, Index: i, Model: rapid.SampledFrom([]string{"NVIDIA H200", "Tesla T4"}).Draw(t, "model"),
				NUMANode: rapid.IntRange(nvidia.NUMAUnknown, 3).Draw(t, "numa"), MemoryMiB: 15360,
			},
			Replicas: rapid.IntRange(0, 100).Draw(t, "replicas"), MemoryMiB: rapid.Int64Range(0, 16<<20).Draw(t, "memory"),
			CorePercent: rapid.SampledFrom([]int{0, 100, 250}).Draw(t, "cores"), Healthy: rapid.Bool().Draw(t, "healthy"),
			Others: rapid.SampledFrom([]api.NodeUse{{}, {MemoryMiB: 100, Cores: 30, Replicas: 1}}).Draw(t, "others"),
		})
		n.Topology.UUIDs = append(n.Topology.UUIDs, uuid)
	}
	pairs := make([][]nvidia.Pair, len(n.Devices))
	for i := range pairs {
		pairs[i] = make([]nvidia.Pair, len(n.Devices))
		for j := range i {
			pairs[i][j] = nvidia.Pair{Level: nvidia.Level(rapid.IntRange(0, 5).Draw(t, "level")), NVLinks: rapid.IntRange(0, 18).Draw(t, "nvlinks")}
			pairs[j][i] = pairs[i][j]
		}
	}
	if n.Topology.Pairs = pairs; !linked {
		n.Topology = nvidia.Topology{}
	}
	n.MemoryEnforcement = rapid.SampledFrom([]string{"", "limiter", "native", "native+limiter"}).Draw(t, "memory enforcement")
	n.Devices = rapid.Permutation(n.Devices).Draw(t, "order")
	return n
})

// What the agent writes, in each of its three forms, is what the scheduler reads.
func TestAgentsAnnotationsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := genNode.Draw(t, "node")
		want := inventory(n)

		read := func(o noderegister.Options, without ...string) scheduler.Inventory {
			object := &scheduler.Node{Name: "n", Annotations: noderegister.Render(n, o).Annotations}
			for _, key := range without {
				delete(object.Annotations, key)
			}
			got, _, err := DecodeNode(object)
			require.NoError(t, err)
			require.NoError(t, warningOf(object))
			return got
		}
		require.Equal(t, want, read(noderegister.Options{}), "ours before HAMi's")
		require.Equal(t, want, read(noderegister.Options{}, api.AnnotationHAMiRegister, api.AnnotationHAMiScore), "only ours")

		for i := range want.GPUs { // HAMi has no word for unknown, none for others, and none for isolation
			want.GPUs[i].NUMA, want.GPUs[i].Others, want.GPUs[i].Isolation = max(want.GPUs[i].NUMA, 0), scheduler.Use{}, grant.IsolationAny
		}
		if want.Links == nil {
			want.Links = table(len(want.GPUs))
		}
		want.HAMi = true
		require.Equal(t, want, read(noderegister.Options{}, api.AnnotationNodeGPUs))
		want.Links = nil
		require.Equal(t, want, read(noderegister.Options{}, api.AnnotationNodeGPUs, api.AnnotationHAMiScore))
		require.Equal(t, want, read(noderegister.Options{CSV: true}, api.AnnotationNodeGPUs, api.AnnotationHAMiScore))
	})
}

// inventory is what the agent knows in the scheduler's words.
func inventory(n noderegister.Node) scheduler.Inventory {
	devices := slices.Clone(n.Devices)
	slices.SortFunc(devices, func(a, b noderegister.Device) int { return a.GPU.Index - b.GPU.Index })
	var inventory scheduler.Inventory
	for _, d := range devices {
		model := d.GPU.Model
		if model == "Tesla T4" {
			model = "NVIDIA-Tesla T4"
		}
		isolation := grant.IsolationLimiter
		if (n.MemoryEnforcement == "native" || n.MemoryEnforcement == "native+limiter") && d.MemoryMiB <= 15360 {
			isolation = grant.IsolationDriver
		}
		inventory.GPUs = append(inventory.GPUs, scheduler.GPU{
			Isolation: isolation,
			UUID:      d.GPU.UUID, Model: model, Index: d.GPU.Index, NUMA: d.GPU.NUMANode, MemoryMiB: d.MemoryMiB,
			Cores: d.CorePercent, Replicas: d.Replicas, Mode: "hami-core", Healthy: d.Healthy,
			Others: scheduler.Use{MemoryMiB: d.Others.MemoryMiB, Cores: d.Others.Cores, Replicas: d.Others.Replicas},
		})
	}
	if n.Topology.UUIDs == nil {
		return inventory
	}
	inventory.Links = table(len(devices))
	for i, a := range devices {
		for j, b := range devices {
			inventory.Links[i][j] = n.Topology.Link(a.GPU.UUID, b.GPU.UUID)
		}
	}
	return inventory
}

func FuzzDecodeNode(f *testing.F) {
	f.Add(ours, hamiJSON, `[{"uuid":"`+gpuA+`","score":{"`+gpuB+`":10}}]`, gpuA)
	f.Add("", hami7, "[]", "")
	f.Add(`{"version":1,"gpus":[]}`, hami9, "", ",")
	f.Fuzz(func(t *testing.T, gpus, register, score, cordon string) {
		n := &scheduler.Node{Name: "n", Annotations: map[string]string{}}
		for key, value := range map[string]string{api.AnnotationNodeGPUs: gpus, api.AnnotationHAMiRegister: register, api.AnnotationHAMiScore: score, api.AnnotationHAMiCordon: cordon} {
			if value != "" {
				n.Annotations[key] = value
			}
		}
		got, _, err := DecodeNode(n)
		if err != nil {
			require.Equal(t, scheduler.Inventory{}, got)
			return
		}
		require.LessOrEqual(t, len(got.GPUs), MaxGPUs)
		require.True(t, got.Links == nil || len(got.Links) == len(got.GPUs))
		for i, c := range got.GPUs {
			require.NoError(t, check(&c))
			require.True(t, i == 0 || got.GPUs[i-1].Index <= c.Index)
			for j := range got.Links {
				require.Equal(t, got.Links[i][j], got.Links[j][i])
			}
		}
	})
}

func FuzzDecodeTemplate(f *testing.F) {
	f.Add(ours, hamiJSON, "8", "81920", "10", "NVIDIA-H200", "hami-core")
	f.Add("", "", "2", "1", "", "", "mig")
	f.Fuzz(func(t *testing.T, gpus, register, count, memory, replicas, model, mode string) {
		n := &scheduler.Node{Name: "n", Annotations: map[string]string{}, Labels: map[string]string{}}
		for key, value := range map[string]string{api.AnnotationNodeGPUs: gpus, api.AnnotationHAMiRegister: register} {
			if value != "" {
				n.Annotations[key] = value
			}
		}
		for key, value := range map[string]string{"count": count, "memory": memory, "replicas": replicas, "model": model, "mode": mode} {
			if value != "" {
				n.Labels[api.LabelPrefix+key] = value
			}
		}
		got, err := DecodeTemplate(n)
		if err != nil {
			require.Equal(t, scheduler.Inventory{}, got)
			return
		}
		require.LessOrEqual(t, len(got.GPUs), MaxGPUs)
		for i, c := range got.GPUs {
			require.NoError(t, check(&c))
			require.Equal(t, templateUUID(i), c.UUID)
			require.True(t, c.Healthy)
		}
	})
}

func BenchmarkDecodeNode(b *testing.B) {
	var devices []noderegister.Device
	var topology nvidia.Topology
	for i := range 8 {
		uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", i)
		topology.UUIDs = append(topology.UUIDs, uuid)
		topology.Pairs = append(topology.Pairs, make([]nvidia.Pair, 8))
		devices = append(devices, noderegister.Device{GPU: nvidia.GPU{UUID: uuid, Index: i, Model: "NVIDIA H200"}, Replicas: 10, MemoryMiB: 143771, CorePercent: 100, Healthy: true})
	}
	for name, without := range map[string][]string{
		"ours": nil, "hami": {api.AnnotationNodeGPUs}, "csv": {api.AnnotationNodeGPUs, api.AnnotationHAMiScore},
	} {
		var o noderegister.Options
		if name == "csv" {
			o.CSV = true
		}
		n := &scheduler.Node{Name: "n", Annotations: noderegister.Render(noderegister.Node{Devices: devices, Topology: topology}, o).Annotations}
		for _, key := range without {
			delete(n.Annotations, key)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := DecodeNode(n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
