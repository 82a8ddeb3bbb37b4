package api

// NodeFileName is the file in StateDir with the node's GPUs (package monitor/node). The agent writes it.
const NodeFileName = "node.json"

// NodeCacheName is gpuslice-runtime's cache for a node without an agent: it has the same under "node".
const NodeCacheName = "gpus.json"

// NodeFileVersion changes with the meaning of a field.
const NodeFileVersion = 2

// NodeDevice is a GPU or MIG device that can be granted, in NodeFileName.
type NodeDevice struct {
	UUID string `json:"uuid"`
	GPU  string `json:"gpu"`
	// Resource is the end of a resource of its own, "mig-1g.10gb"; optional.
	Resource    string `json:"resource,omitempty"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	Replicas    int    `json:"replicas"`
}

// MemoryPages is how the driver takes GPU memory: in pages of KiB, which allocations of up to SmallKiB share.
type MemoryPages struct {
	KiB      uint16 `json:"kib"`
	SmallKiB uint16 `json:"smallKiB"`
	Source   string `json:"source"`
}

// NVIDIAPages is not measured on the node: a measurement takes a CUDA context, and counts what other processes allocate at
// the same moment.
var NVIDIAPages = MemoryPages{KiB: 2048, SmallKiB: 1024, Source: "constant, for GPUs since Pascal: pytorch/pytorch#17120, JustVugg/colibri#1244"}
