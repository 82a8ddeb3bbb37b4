// Package sample has a node and a cluster as they might be, for the tests that look at what
// is shown of them.
package sample

import (
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Hostile is a name that wants to be a program, and to turn around what follows it.
const Hostile = `<img src=x onerror="document.title='hacked'"><script>document.title='hacked'</script>` + "\u202e"

// UUID is a GPU's.
func UUID(gpu int) string {
	return fmt.Sprintf("GPU-0000000%d-5151-4000-8000-00000000000%d", gpu, gpu)
}

func ptr[T any](v T) *T { return &v }

const gib = 1 << 30

// Node is a node with three GPUs, of which the first is shared and at work, the second is
// full and the third is ill. One of its pods has that name.
func Node(pod string) view.Node {
	now := time.Now()
	telemetry := func(usedGiB float64, busy, celsius int, milliwatts uint32) *nvidia.Telemetry {
		return &nvidia.Telemetry{Taken: now, MemoryUsedBytes: ptr(uint64(usedGiB * gib)), MemoryTotalBytes: ptr(uint64(128 * gib)),
			UtilizationPercent: ptr(busy), TemperatureCelsius: ptr(celsius), PowerMilliwatts: ptr(milliwatts)}
	}
	gpu := func(index int, granted int64, cores, containers int, used uint64) view.GPU {
		return view.GPU{UUID: UUID(index), Index: index, Model: "NVIDIA H200", MemoryMiB: 128 << 10, GrantableMiB: 128 << 10, GrantedMemoryMiB: granted << 10,
			GrantableCores: 100, GrantedCores: cores, GrantableReplicas: 10, GrantedContainers: containers, UsedBytes: used * gib, Healthy: true}
	}
	container := func(pod, name string, shares ...view.Share) view.Container {
		return view.Container{ContainerID: "id-of-" + name, Pod: pod, Name: name, Owner: "nri", State: "active", Enforcement: "preload", CreatedAt: now.Add(-time.Hour), Shares: shares}
	}
	first, second, third := gpu(0, 96, 75, 3, 40), gpu(1, 128, 100, 1, 120), gpu(2, 0, 0, 0, 0)
	first.Telemetry, second.Telemetry = telemetry(48, 64, 61, 412_000), telemetry(122, 97, 74, 655_000)
	third.Healthy, third.Unhealthy = false, "XID 79: it has fallen off the bus"
	spoilt := container("team-b/"+pod, "train", view.Share{UUID: UUID(0), MemoryMiB: 16 << 10, CorePercent: 25})
	spoilt.UsageProblem = "usage file: it is shorter than it was made"
	return view.Node{
		Name: "gpu-node-7", DriverVersion: "575.57.08", CUDAVersion: "12.9", GPUsReadAt: now, GPUs: []view.GPU{first, second, third},
		Containers: []view.Container{
			container("team-a/inference-6c5d", "server", view.Share{UUID: UUID(0), MemoryMiB: 32 << 10, CorePercent: 50, UsedBytes: 8 * gib, ResidueBytes: 4 * gib, Processes: 2,
				ComputeNanoseconds: 9e12, ThrottledNanoseconds: 95e9, Launches: 1_200_000, LastLaunch: now, CoreUsedPercent: ptr(20.0)}),
			container("team-a/notebook-0", "jupyter", view.Share{UUID: UUID(0), MemoryMiB: 48 << 10, UsedBytes: 24 * gib, Processes: 1,
				ComputeNanoseconds: 1e12, Launches: 4000, LastLaunch: now.Add(-3 * time.Hour), CoreUsedPercent: ptr(0.0), RefusedAllocations: 3}),
			spoilt,
			container("team-c/big", "train", view.Share{UUID: UUID(1), MemoryMiB: 128 << 10, CorePercent: 100, UsedBytes: 120 * gib, Processes: 1,
				ComputeNanoseconds: 7e13, Launches: 9_000_000, LastLaunch: now, CoreUsedPercent: ptr(97.0)}),
		},
		Problems: []string{"GPU 2: nvmlDeviceGetUUID: GPU is lost", "container id-of-train: usage file: it is shorter than it was made"},
	}
}

// Cluster is an engine that knows two nodes with GPUs of 80000 MiB, pods on them and pods that
// wait: for more than there is, for what is free on two GPUs, for more GPUs than there are
// (of that name), and for what is not allowed.
func Cluster(many string) (*engine.Engine, error) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	if err != nil {
		return nil, err
	}
	gpus := func(from, ill int) string {
		text := ""
		for i := from; i < from+2; i++ {
			text += fmt.Sprintf(`,{"uuid":%q,"model":"NVIDIA H100 80GB HBM3","index":%d,"memoryMiB":80000,"cores":100,"replicas":10,"mode":"hami-core","healthy":%t}`, UUID(i), i-from, i != ill)
		}
		return `{"version":1,"gpus":[` + text[1:] + `]}`
	}
	e.SetNode(&scheduler.Node{Name: "node-a", Annotations: map[string]string{api.AnnotationNodeGPUs: gpus(1, 0)}})
	e.SetQuota("team-a", "gpus", quota.Quota{Limits: quota.Limits{MemoryMiB: 400_000, Cores: 1000}})
	e.SetNode(&scheduler.Node{Name: "node-b", Annotations: map[string]string{api.AnnotationNodeGPUs: gpus(3, 4)}})
	for _, p := range []struct {
		name, node string
		mib, cores int64
		gpu        int
	}{{"inference", "node-a", 40000, 30, 1}, {"training", "node-a", 60000, 80, 2}, {"notebook", "node-b", 20000, 0, 3}} {
		pod := Pod(p.name, 1, p.mib, p.cores)
		written, err := wire.Annotations(pod, scheduler.Placement{Node: p.node, Containers: [][]grant.Share{{{UUID: UUID(p.gpu), MemoryMiB: p.mib, CorePercent: int(p.cores)}}}}, nil, time.Now())
		if err != nil {
			return nil, err
		}
		pod.Node, pod.Annotations = p.node, written
		e.SetPod(pod)
	}
	e.SetPod(Pod("too-big", 1, 90000, 0))
	e.SetPod(Pod("fragmented", 1, 70000, 10))
	e.SetPod(Pod(many, 3, 1000, 0))
	e.SetPod(Pod("greedy", 1, 1000, 200))
	return e, nil
}

// Pod asks for GPUs, and has been waiting for some minutes.
func Pod(name string, gpus, mib, cores int64) *scheduler.Pod {
	c := scheduler.Container{Name: "main", Resources: map[string]scheduler.Amount{"nvidia.com/gpu": {Value: gpus}, "nvidia.com/gpumem": {Value: mib}}}
	if cores > 0 {
		c.Resources["nvidia.com/gpucores"] = scheduler.Amount{Value: cores}
	}
	return &scheduler.Pod{UID: "uid-" + name, Namespace: "team-a", Name: name, Created: time.Now().Add(-12 * time.Minute), Containers: []scheduler.Container{c}}
}
