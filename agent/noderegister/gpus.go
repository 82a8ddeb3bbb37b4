package noderegister

import "github.com/gpuslice/gpuslice/nvidia"

// AnnotationGPUs has the devices of a node in our form, for our scheduler: package
// scheduler/wire reads it, and has its manual.
const AnnotationGPUs = "gpuslice.io/node-gpus"

// gpusVersion is raised when the meaning of a field changes; one more field is no new
// version.
const gpusVersion = 1

// nodeGPUs is the annotation.
type nodeGPUs struct {
	Version int   `json:"version"`
	GPUs    []gpu `json:"gpus"`
	// Links has a row and a column for each GPU; nil: not known.
	Links [][]int `json:"links,omitempty"`
}

// GPU is a device. Nothing is left out that can be 0.
type gpu struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Index     int    `json:"index"`
	NUMA      *int   `json:"numa,omitempty"` // nil: not known
	MemoryMiB int64  `json:"memoryMiB"`
	Cores     int    `json:"cores"`
	Slots     int    `json:"slots"`
	Mode      string `json:"mode"`
	Healthy   bool   `json:"healthy"`
}

// GPUs are the devices and how they are connected. The model is HAMi's word for it, so
// that a pod which chooses by it gets the same from either annotation.
func gpus(devices []Device, t nvidia.Topology) string {
	told := nodeGPUs{Version: gpusVersion, GPUs: make([]gpu, len(devices))}
	for i, d := range devices {
		told.GPUs[i] = gpu{
			UUID: d.GPU.UUID, Model: registeredType(d.GPU.Model), Index: max(d.GPU.Index, 0),
			MemoryMiB: max(d.MemoryMiB, 0), Cores: max(d.CorePercent, 0), Slots: max(d.Slots, 0), Mode: d.mode(), Healthy: d.Healthy,
		}
		if numa := d.GPU.NUMANode; numa != nvidia.NUMAUnknown {
			told.GPUs[i].NUMA = &numa
		}
	}
	if len(t.UUIDs) > 0 {
		told.Links = links(devices, t)
	}
	return mustJSON(told)
}

// links are each device's with each; 0 with itself, and where nobody knows.
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
