package noderegister

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

type nodeGPUs struct {
	Version int     `json:"version"`
	GPUs    []gpu   `json:"gpus"`
	Links   [][]int `json:"links,omitempty"`
}

type gpu struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Index     int    `json:"index"`
	NUMA      *int   `json:"numa,omitempty"`
	MemoryMiB int64  `json:"memoryMiB"`
	Cores     int    `json:"cores"`
	Slots     int    `json:"slots"`
	Mode      string `json:"mode"`
	Healthy   bool   `json:"healthy"`
}

// gpus uses HAMi's model names, so that a pod that selects a model gets the same GPUs from either
// annotation.
func gpus(devices []Device, t nvidia.Topology) string {
	annotation := nodeGPUs{Version: api.NodeGPUsVersion, GPUs: make([]gpu, len(devices))}
	for i, d := range devices {
		annotation.GPUs[i] = gpu{
			UUID: d.GPU.UUID, Model: registeredType(d.GPU.Model), Index: max(d.GPU.Index, 0),
			MemoryMiB: max(d.MemoryMiB, 0), Cores: max(d.CorePercent, 0), Slots: max(d.Slots, 0), Mode: d.mode(), Healthy: d.Healthy,
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
