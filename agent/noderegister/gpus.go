package noderegister

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// gpus uses HAMi's model names, so that a pod that selects a model gets the same GPUs from either
// annotation.
func gpus(devices []Device, t nvidia.Topology) string {
	annotation := api.NodeGPUs{Version: api.NodeGPUsVersion, GPUs: make([]api.NodeGPU, len(devices))}
	for i, d := range devices {
		annotation.GPUs[i] = api.NodeGPU{
			UUID: d.GPU.UUID, Model: registeredType(d.GPU.Model), Index: max(d.GPU.Index, 0),
			MemoryMiB: new(max(d.MemoryMiB, 0)), Cores: new(max(d.CorePercent, 0)), Replicas: new(max(d.Replicas, 0)), Mode: d.mode(), Healthy: new(d.Healthy),
		}
		if numa := d.GPU.NUMANode; numa != nvidia.NUMAUnknown {
			annotation.GPUs[i].NUMA = &numa
		}
	}
	if len(t.UUIDs) > 0 {
		annotation.Links = links(devices, t)
	}
	return mustJSON(annotation)
}

func links(devices []Device, t nvidia.Topology) [][]int {
	rows := make([][]int, len(devices))
	for i, a := range devices {
		rows[i] = make([]int, len(devices))
		for j, b := range devices {
			rows[i][j] = t.Link(a.GPU.UUID, b.GPU.UUID)
		}
	}
	return rows
}
