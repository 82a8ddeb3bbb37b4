// Package request parses what a pod requests: HAMi's five resources, gpu-manager's two, and the annotations
// that select GPUs. FromPod returns a Request, nil for a pod without GPUs, or an *Error for the pod's
// author.
//
// A container uses HAMi's resources or gpu-manager's, not both. Defaults are those of the webhook, for pods
// that bypass it.
package request

import (
	"strconv"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Container is a container's request. GPUs == 0: none.
type Container struct {
	GPUs int
	// MemoryMiB is per GPU; 0: MemoryPercent.
	MemoryMiB     int64
	MemoryPercent int
	// Cores is percent of each GPU; 0: unlimited, reserves none.
	Cores int
	// Whole: 100 cores. See Exclusive.
	Whole bool
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

// Use is the use of a GPU of gpuMiB.
func (c *Container) Use(gpuMiB int64) scheduler.Use {
	return scheduler.Use{MemoryMiB: c.Memory(gpuMiB), Cores: c.Cores, Slots: 1}
}

// Exclusive reports whether the container requires an unused GPU. If a node offers more than 100 cores of a
// GPU, 100 are only a part (HAMi's rule).
func (c *Container) Exclusive(gpuCores int) bool {
	return c.Whole && gpuCores <= grant.MaxCorePercent
}

// Request is a pod's request.
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
		return nil, &Error{Key: "containers", Value: strconv.Itoa(n), Why: "a pod with GPUs may have at most " + strconv.Itoa(grant.MaxContainers)}
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
