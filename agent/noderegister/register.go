package noderegister

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Render does not depend on the order of the devices.
func Render(n Node, o Options) Metadata {
	n.Devices = slices.SortedFunc(slices.Values(n.Devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.GPU.Index, b.GPU.Index), cmp.Compare(a.GPU.UUID, b.GPU.UUID))
	})
	m := Metadata{Labels: labels(n, o), Annotations: map[string]string{}}
	n.Devices = slices.DeleteFunc(n.Devices, Device.partitioned)
	if len(n.Refused) > 0 {
		m.Annotations[api.AnnotationNodeRefused] = mustJSON(n.Refused)
	}
	// HAMi treats an empty list and a missing annotation as the same error.
	if len(n.Devices) == 0 {
		return m
	}
	m.Annotations[api.AnnotationNodeGPUs] = gpus(n)
	m.Annotations[api.AnnotationHAMiScore] = scores(n.Devices, n.Topology)
	if o.CSV {
		m.Annotations[api.AnnotationHAMiRegister] = registerCSV(n.Devices)
	} else {
		m.Annotations[api.AnnotationHAMiRegister] = registerJSON(n.Devices)
	}
	if o.Volcano {
		m.Annotations[api.AnnotationVolcanoRegister] = registerVolcano(n.Devices)
	}
	return m
}

// partitioned devices are omitted: the administrator partitioned the GPU, and the kubelet counts
// its MIG devices.
func (d Device) partitioned() bool { return d.mode() == api.ModeMIG }

func register(d Device) api.HAMiGPU {
	return api.HAMiGPU{
		ID:     d.GPU.UUID,
		Index:  max(d.GPU.Index, 0),
		Count:  int(number(int64(d.Replicas))),
		Memory: number(d.MemoryMiB),
		Core:   int(number(int64(d.CorePercent))),
		Type:   registeredType(d.GPU.Model),
		NUMA:   max(d.GPU.NUMANode, 0), // HAMi has no value for unknown
		Mode:   d.mode(),
		Health: d.Healthy,
	}
}

// number limits a value to HAMi's int32: a larger one would make the whole annotation invalid.
func number(n int64) int64 { return min(max(n, 0), math.MaxInt32) }

// registeredType adds the prefix "NVIDIA", for nvidia.com/use-gputype.
func registeredType(model string) string {
	if strings.HasPrefix(model, "NVIDIA") {
		return model
	}
	return "NVIDIA-" + model
}

func registerJSON(devices []Device) string {
	list := make([]api.HAMiGPU, len(devices))
	for i, d := range devices {
		list[i] = register(d)
	}
	return mustJSON(list)
}

// registerCSV has the nine fields that every HAMi with this format reads. The format has no
// escapes.
func registerCSV(devices []Device) string {
	var b strings.Builder
	for _, d := range devices {
		r := register(d)
		fmt.Fprintf(&b, "%s,%d,%d,%d,%s,%d,%t,%d,%s:",
			separators.Replace(r.ID), r.Count, r.Memory, r.Core, separators.Replace(r.Type), r.NUMA, r.Health, r.Index, r.Mode)
	}
	return b.String()
}

var separators = strings.NewReplacer(",", "-", ":", "-")

// registerVolcano has Volcano's six fields. Its scheduler does not use the health: an unhealthy GPU has no replicas. It stays in
// the list, because pods have it.
func registerVolcano(devices []Device) string {
	var b strings.Builder
	for _, d := range devices {
		r := register(d)
		if !r.Health {
			r.Count = 0
		}
		fmt.Fprintf(&b, "%s,%d,%d,%s,%t,%s:", separators.Replace(r.ID), r.Count, r.Memory, separators.Replace(r.Type), r.Health, r.Mode)
	}
	return b.String()
}

func scores(devices []Device, t nvidia.Topology) string {
	list := make([]api.HAMiScore, len(devices))
	for i, a := range devices {
		list[i] = api.HAMiScore{UUID: a.GPU.UUID, Scores: map[string]int{}}
		for _, b := range devices {
			if a.GPU.UUID != b.GPU.UUID {
				list[i].Scores[b.GPU.UUID] = t.Link(a.GPU.UUID, b.GPU.UUID)
			}
		}
	}
	return mustJSON(list)
}

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// Options select what is written. The zero value is for current HAMi, without gpu-manager's label.
type Options struct {
	// CSV is the older form of hami.io/node-nvidia-register, without JSON.
	CSV bool
	// IgnoreHandshake answers no requests of schedulers. It is for those that use the node's allocatable devices,
	// and saves two writes per node and half-minute.
	IgnoreHandshake bool
	// HAMiGrants releases HAMi's lock of the node: the node takes grants of HAMi's scheduler, which locks it for each
	// pod and places no other pod there for five minutes unless the node's programs release the lock.
	HAMiGrants bool
	// Volcano also registers the node with Volcano.
	Volcano      bool
	TencentModel bool
	// NVIDIALabels writes those of api.NVIDIALabels that no other program has written.
	NVIDIALabels bool
	Capacity     Capacity
}

type Metadata struct {
	Labels      map[string]string
	Annotations map[string]string
}

// Node is what the annotations and labels describe.
type Node struct {
	Devices       []Device
	Topology      nvidia.Topology
	DriverVersion string
	CUDAVersion   string
	MIGStrategy   nvidia.MIGStrategy
	// MemoryEnforcement is what limits new containers' memory (oci.MemoryEnforcement); "": the limiter, which needs no label.
	MemoryEnforcement string
	// Refused are the pods that have grants which the node can't serve.
	Refused []api.RefusedPod
}

type Device struct {
	GPU      nvidia.GPU
	Replicas int
	// MemoryMiB and CorePercent are the grantable amounts, scaling included.
	MemoryMiB   int64
	CorePercent int
	// Others is what containers have that no scheduler placed.
	Others  api.NodeUse
	Mode    string
	Healthy bool
}

func (d Device) mode() string { return cmp.Or(d.Mode, api.ModeShared) }

// gpus uses HAMi's model names, so that a pod that selects a model gets the same GPUs from either
// annotation.
func gpus(n Node) string {
	devices, t := n.Devices, n.Topology
	annotation := api.NodeGPUs{Version: api.NodeGPUsVersion, GPUs: make([]api.NodeGPU, len(devices))}
	for i, d := range devices {
		annotation.GPUs[i] = api.NodeGPU{
			UUID: d.GPU.UUID, Model: registeredType(d.GPU.Model), Index: max(d.GPU.Index, 0),
			MemoryMiB: new(max(d.MemoryMiB, 0)), Cores: new(max(d.CorePercent, 0)), Replicas: new(max(d.Replicas, 0)), Mode: d.mode(), Healthy: new(d.Healthy),
			Isolation: api.IsolationOfShare(n.MemoryEnforcement, d.MemoryMiB > d.GPU.MemoryMiB),
		}
		if d.Others != (api.NodeUse{}) {
			annotation.GPUs[i].Others = &d.Others
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
