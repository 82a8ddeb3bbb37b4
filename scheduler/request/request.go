package request

import (
	"strconv"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Container is what one container asks for. GPUs == 0: nothing.
type Container struct {
	// GPUs is the number of distinct GPUs.
	GPUs int
	// MemoryMiB is of each GPU; 0: by percent.
	MemoryMiB int64
	// MemoryPercent is of each GPU's memory, 1 to 100, when MemoryMiB is 0.
	MemoryPercent int
	// Cores is percent of each GPU's compute time, 0 to 100; 0 is not limited, and books none.
	Cores int
	// Whole says that all of the compute time is asked for (Cores == 100): see Exclusive.
	Whole bool
}

// Memory is what the container takes of a GPU that has so many MiB; at least 1 MiB of
// a GPU that has any.
func (c *Container) Memory(gpuMiB int64) int64 {
	if c.MemoryMiB > 0 || c.MemoryPercent == 0 {
		return c.MemoryMiB
	}
	// By parts: a hostile node's GPU is never large enough to overflow this.
	mib := gpuMiB/100*int64(c.MemoryPercent) + gpuMiB%100*int64(c.MemoryPercent)/100
	return max(mib, min(gpuMiB, 1))
}

// Use is what the container takes of a GPU that has so many MiB.
func (c *Container) Use(gpuMiB int64) scheduler.Use {
	return scheduler.Use{MemoryMiB: c.Memory(gpuMiB), Cores: c.Cores, Slots: 1}
}

// Exclusive says whether the container wants a GPU of so many cores empty. On a node
// that offers more than 100 cores of a GPU, 100 are a part of it (HAMi's rule).
func (c *Container) Exclusive(gpuCores int) bool {
	return c.Whole && gpuCores <= grant.MaxCorePercent
}

// Request is what a pod asks for.
type Request struct {
	// Containers and Kinds are by position in Pod.Containers.
	Containers []Container
	Kinds      []scheduler.Kind
	Rules      Rules
	// HighPriority says that a container has HAMi's priority 0. It says nothing of placement.
	HighPriority bool
	// Signature is equal only for requests that any node judges equally, quotas apart:
	// a key for caches. It knows nothing of names, positions of containers that ask for
	// nothing, priorities and groups.
	Signature string
}

// FromPod is what the pod asks for; nil, nil: nothing. An error is an *Error, for the
// pod's author.
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
		return nil, &Error{Key: "containers", Value: strconv.Itoa(n), Why: "a pod that asks for GPUs may have at most " + strconv.Itoa(grant.MaxContainers)}
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
