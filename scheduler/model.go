// Package scheduler is the model that everything which decides about GPUs in a cluster
// has in common: nodes, pods, and what a pod was given. It has no types of
// Kubernetes: the doors (package kube and those that use it) translate once.
//
//	request/    what a pod asks for: HAMi's resources and rules, gpu-manager's
//	wire/       annotations of nodes and pods, read and written
//	quota/      what a namespace may have
//	choose/     which GPUs of a node, which node: policies and topology, on plain numbers
//	engine/     the state of the cluster, and one pod's placement on it
//	kube/       Kubernetes' objects to these, and its events into the engine
//	plugin/     the door for kube-scheduler's framework
//	extender/   the door for a kube-scheduler that can't be replaced
//	webhook/    the door of the API server
package scheduler

import (
	"time"

	"github.com/gpuslice/gpuslice/grant"
)

// Kind is how long a container runs, by which it is counted.
type Kind uint8

// The kinds. Of a pod's containers, those of spec.initContainers come first.
const (
	App     Kind = iota // of spec.containers
	Init                // of spec.initContainers: ends before the next begins
	Sidecar             // of spec.initContainers with restartPolicy Always: runs until the pod ends
)

// Amount is how much of a resource a container's limits name.
type Amount struct {
	Value int64
	// Invalid is why the amount is no whole number that fits Value; empty if it is one.
	Invalid string
}

// Container is what the scheduler has to know of a container.
type Container struct {
	Name string
	Kind Kind
	// Resources are its limits, or its requests where only those are set, by name.
	Resources map[string]Amount
}

// Pod is what the scheduler has to know of a pod. It is not changed once it was handed over.
type Pod struct {
	UID, Namespace, Name string
	// Node is where it is bound to; empty while it waits.
	Node string
	// Priority is by its priority class; Created breaks ties.
	Priority int32
	Created  time.Time
	// Ended says that it has Succeeded or Failed: it holds nothing.
	Ended       bool
	Labels      map[string]string
	Annotations map[string]string
	// Containers are those of spec.initContainers in their order, then those of
	// spec.containers: the positions of HAMi's annotation.
	Containers []Container
}

// Node is what the scheduler has to know of a node. It is not changed once it was handed over.
type Node struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
}

// NUMAUnknown is the NUMA node of a GPU that is not known.
const NUMAUnknown = -1

// GPU is a GPU as its node registers it.
type GPU struct {
	UUID string
	// Model is the registered type, "NVIDIA H200".
	Model string
	Index int
	// NUMA is the memory node beside it, or NUMAUnknown.
	NUMA int
	// MemoryMiB, Cores and Slots are what may be given out of it, scaling included.
	MemoryMiB int64
	Cores     int
	Slots     int
	// Mode is hami-core, mig or mps.
	Mode string
	// Healthy says that its node may give it out; Cordoned, that its operator wants no
	// new container on it.
	Healthy, Cordoned bool
}

// Inventory is a node's GPUs, in the order of their index, and how they are connected.
type Inventory struct {
	GPUs []GPU
	// Links is how well each GPU is connected with each, by position: 10 for a pair
	// across the sockets to 60 on one board, and 100 for each NVLink (HAMi's numbers, gpu.Pair).
	// Nil where the node tells nothing.
	Links [][]int
}

// Placement is what a pod is given on a node.
type Placement struct {
	Node string
	// Generation is how often what the pod has was changed since it was bound.
	Generation int64
	// Containers are the shares of each container, by its position in Pod.Containers;
	// none for one without GPUs.
	Containers [][]grant.Share
}

// Use is how much of a GPU is taken.
type Use struct {
	MemoryMiB int64
	Cores     int
	Slots     int
}

// Add is the sum.
func (u Use) Add(v Use) Use {
	return Use{MemoryMiB: u.MemoryMiB + v.MemoryMiB, Cores: u.Cores + v.Cores, Slots: u.Slots + v.Slots}
}

// Sub is the difference.
func (u Use) Sub(v Use) Use {
	return Use{MemoryMiB: u.MemoryMiB - v.MemoryMiB, Cores: u.Cores - v.Cores, Slots: u.Slots - v.Slots}
}

// Max is the larger of each.
func (u Use) Max(v Use) Use {
	return Use{MemoryMiB: max(u.MemoryMiB, v.MemoryMiB), Cores: max(u.Cores, v.Cores), Slots: max(u.Slots, v.Slots)}
}

// Uses is what a pod with these containers takes of each GPU when they are given these
// shares, by the GPU's UUID. It counts as Kubernetes does: sidecars and ordinary
// containers run together; an init container runs before them, beside the sidecars that
// were started before it. What is taken is the most of any of these moments.
func Uses(containers []Container, shares [][]grant.Share) map[string]Use {
	most, running := map[string]Use{}, map[string]Use{}
	peak := func(uuid string, u Use) { most[uuid] = most[uuid].Max(u) }
	for _, kind := range []Kind{Init, App} { // Init stands for both that come first
		for i, c := range containers {
			if (c.Kind == App) != (kind == App) || i >= len(shares) {
				continue
			}
			for _, s := range shares[i] {
				u := running[s.UUID].Add(Use{MemoryMiB: s.MemoryMiB, Cores: s.CorePercent, Slots: 1})
				peak(s.UUID, u)
				if c.Kind != Init {
					running[s.UUID] = u
				}
			}
		}
	}
	return most
}
