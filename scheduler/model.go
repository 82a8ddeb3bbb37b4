// Package scheduler has the nodes, pods and placements that the scheduler's packages share, without
// Kubernetes types: package kube converts them.
package scheduler

import (
	"time"

	"github.com/gpuslice/gpuslice/grant"
)

// Kind is how a container runs.
type Kind uint8

const (
	App     Kind = iota // of spec.containers
	Init                // of spec.initContainers: ends before the next starts
	Sidecar             // of spec.initContainers with restartPolicy Always
)

// Amount is a resource in a container's limits.
type Amount struct {
	Value int64
	// Invalid is set if the amount is not an integer that fits Value.
	Invalid string
}

type Container struct {
	Name string
	Kind Kind
	// Resources are its limits, or requests if only those are set, by name.
	Resources map[string]Amount
}

// Class is what the scopes of a ResourceQuota select pods by.
type Class struct {
	PriorityClass string
	// Terminating: with an active deadline. BestEffort is the pod's QoS class. CrossNamespace: its affinity names
	// namespaces.
	Terminating, BestEffort, CrossNamespace bool
}

type Pod struct {
	UID, Namespace, Name string
	// Node is where it is bound; empty: pending.
	Node     string
	Priority int32
	Class    Class
	// Group identifies the pods that are scheduled together; empty: none.
	Group   string
	Created time.Time
	// Ended: Succeeded or Failed.
	Ended       bool
	Labels      map[string]string
	Annotations map[string]string
	// Containers are spec.initContainers, then spec.containers, as in HAMi's annotation.
	Containers []Container
}

type Node struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
}

// NUMAUnknown is the NUMA node of a GPU for which it is not known.
const NUMAUnknown = -1

type GPU struct {
	UUID string
	// Model is the registered type, such as "NVIDIA H200".
	Model string
	Index int
	// NUMA is its NUMA node, or NUMAUnknown.
	NUMA int
	// The allocatable amounts, scaling included.
	MemoryMiB int64
	Cores     int
	Replicas  int
	// Others is what containers have that no scheduler placed.
	Others Use
	// Mode is hami-core, mig or mps.
	Mode string
	// Isolation is that of a share; grant.IsolationAny: not known.
	Isolation grant.Isolation
	// Healthy is set by the node, Cordoned by an operator.
	Healthy, Cordoned bool
}

// Condition is why the GPU gets no new containers; "" if it does.
func (g *GPU) Condition() string {
	switch {
	case !g.Healthy:
		return "not healthy"
	case g.Cordoned:
		return "cordoned"
	}
	return ""
}

// Inventory is a node's GPUs, by index, and their links.
type Inventory struct {
	GPUs []GPU
	// Links has HAMi's numbers for each pair (gpu.Pair): 10 across sockets to 60 on one board, plus 100 for
	// each NVLink. Nil: unknown.
	Links [][]int
	// HAMi: the node has HAMi's device plugin, and no agent of gpuslice.
	HAMi bool
}

// Placement is what a pod gets on a node.
type Placement struct {
	Node string
	// Generation counts changes since the pod was bound.
	Generation int64
	// Containers are the shares by position in Pod.Containers.
	Containers [][]grant.Share
	// HAMi: the node has HAMi's device plugin. It is set for a new placement only.
	HAMi bool
}

type Use struct {
	MemoryMiB int64
	Cores     int
	Replicas  int
}

func (u Use) Add(v Use) Use {
	return Use{MemoryMiB: u.MemoryMiB + v.MemoryMiB, Cores: u.Cores + v.Cores, Replicas: u.Replicas + v.Replicas}
}

func (u Use) Sub(v Use) Use {
	return Use{MemoryMiB: u.MemoryMiB - v.MemoryMiB, Cores: u.Cores - v.Cores, Replicas: u.Replicas - v.Replicas}
}

func (u Use) Max(v Use) Use {
	return Use{MemoryMiB: max(u.MemoryMiB, v.MemoryMiB), Cores: max(u.Cores, v.Cores), Replicas: max(u.Replicas, v.Replicas)}
}

// Uses returns what the pod takes of each GPU, by UUID: the peak, as Kubernetes counts it. Sidecars and
// ordinary containers run together; init containers run before them, next to earlier sidecars.
func Uses(containers []Container, shares [][]grant.Share) map[string]Use {
	most, running := map[string]Use{}, map[string]Use{}
	peak := func(uuid string, u Use) { most[uuid] = most[uuid].Max(u) }
	for _, kind := range []Kind{Init, App} { // Init includes sidecars
		for i, c := range containers {
			if (c.Kind == App) != (kind == App) || i >= len(shares) {
				continue
			}
			for _, s := range shares[i] {
				u := running[s.UUID].Add(Use{MemoryMiB: s.MemoryMiB, Cores: s.CorePercent, Replicas: 1})
				peak(s.UUID, u)
				if c.Kind != Init {
					running[s.UUID] = u
				}
			}
		}
	}
	return most
}
