// Package request parses what a pod requests: HAMi's five resources, gpu-manager's two, and the annotations
// that select GPUs. A container uses one kind of resources. Defaults are those of the webhook, for pods that
// bypass it.
package request

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
)

// Container is a container's request. GPUs == 0: none.
type Container struct {
	GPUs int
	// MemoryMiB is per GPU; 0: MemoryPercent.
	MemoryMiB     int64
	MemoryPercent int
	// Cores is percent of each GPU; 0: unlimited, reserves none.
	Cores int
}

// Memory is the memory on a GPU of gpuMiB, at least 1 MiB.
func (c *Container) Memory(gpuMiB int64) int64 {
	if c.MemoryMiB > 0 || c.MemoryPercent == 0 {
		return c.MemoryMiB
	}
	// In two parts, to prevent overflow.
	mib := gpuMiB/100*int64(c.MemoryPercent) + gpuMiB%100*int64(c.MemoryPercent)/100
	return max(mib, min(gpuMiB, 1))
}

func (c *Container) Use(gpuMiB int64) scheduler.Use {
	return scheduler.Use{MemoryMiB: c.Memory(gpuMiB), Cores: c.Cores, Replicas: 1}
}

// Exclusive reports whether the container requires an unused GPU: 100 cores do, unless the node offers more
// (HAMi's rule).
func (c *Container) Exclusive(gpuCores int) bool {
	return c.Cores == wholeCores && gpuCores <= grant.MaxCorePercent
}

type Request struct {
	// By position in Pod.Containers.
	Containers []Container
	Kinds      []scheduler.Kind
	Rules      Rules
	// HighPriority: a container has HAMi's priority 0.
	HighPriority bool
	// Signature is equal for requests with equal results on any node, apart from quotas: a cache key.
	Signature string
}

// FromPod parses the pod's request; nil, nil: none. Errors are *Error.
func FromPod(pod *scheduler.Pod, o Options) (*Request, error) {
	var r *Request
	for i := range pod.Containers {
		c, high, err := fromContainer(&pod.Containers[i], &o)
		if err != nil {
			return nil, err
		}
		if c.GPUs == 0 {
			continue
		}
		if r == nil {
			r = &Request{Containers: make([]Container, len(pod.Containers))}
		}
		r.Containers[i] = c
		r.HighPriority = r.HighPriority || high
	}
	if r == nil {
		return nil, nil
	}
	if n := len(pod.Containers); n > grant.MaxContainers {
		return nil, &Error{Key: "containers", Value: strconv.Itoa(n), Why: "a pod with GPUs may have at most " +
			strconv.Itoa(grant.MaxContainers)}
	}
	r.Kinds = make([]scheduler.Kind, len(pod.Containers))
	for i := range pod.Containers {
		r.Kinds[i] = pod.Containers[i].Kind
	}
	if err := r.Rules.read(pod); err != nil {
		return nil, err
	}
	if r.Rules.GPUPolicy == "" {
		r.Rules.GPUPolicy = defaultGPUPolicy(pod, &o.Names)
	}
	r.Signature = r.sign()
	return r, nil
}

// defaultGPUPolicy is gpu-manager's own for its resources; empty: the cluster's.
func defaultGPUPolicy(pod *scheduler.Pod, names *Names) string {
	if names.VcudaCore != "" && slices.ContainsFunc(pod.Containers,
		func(c scheduler.Container) bool { return c.Resources[names.VcudaCore].Value > 0 }) {
		return choose.Tencent
	}
	return ""
}

// Error is an invalid request, for the pod's author.
type Error struct {
	// Container is a name; empty for the pod.
	Container string
	// Key is the resource, annotation or label; Value may be shortened.
	Key, Value string
	// Why includes what to do.
	Why string
}

func (e *Error) Error() string {
	text := e.Key + ": "
	if e.Container != "" {
		text = fmt.Sprintf("container %q: ", e.Container) + text
	}
	if e.Value != "" {
		text += e.Value + ": "
	}
	return text + e.Why
}

// Names are the resource names; an empty one disables the resource.
type Names struct {
	// HAMi's.
	Count, Memory, MemoryPercentage, Cores, Priority string
	// gpu-manager's.
	VcudaCore, VcudaMemory string
}

// DefaultNames are HAMi's and gpu-manager's.
func DefaultNames() Names {
	return Names{
		Count: api.ResourceGPU, Memory: api.ResourceMemory, MemoryPercentage: api.ResourceMemoryPercentage,
		Cores: api.ResourceCores, Priority: api.ResourcePriority,
		VcudaCore: api.ResourceVcudaCore, VcudaMemory: api.ResourceVcudaMemory,
	}
}

// Options are a cluster's settings, with HAMi's names.
type Options struct {
	Names Names
	// DefaultMemoryMiB is for containers without memory; 0: all of the GPU.
	DefaultMemoryMiB int64
	// DefaultCores is for containers without cores; 0: unlimited.
	DefaultCores int
	// DefaultCount is for containers with only memory or cores.
	DefaultCount int
	// MemoryFactor is the MiB in one unit of Names.Memory.
	MemoryFactor int64
}

// DefaultOptions are HAMi's defaults.
func DefaultOptions() Options {
	return Options{Names: DefaultNames(), DefaultCount: 1, MemoryFactor: 1}
}
