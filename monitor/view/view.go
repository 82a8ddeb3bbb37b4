// Package view puts together what a node's GPUs are granted and used for, out of the
// node's own files: node.json, the ledger and the containers' usage files. It asks no
// daemon, changes nothing and takes no lock: nobody waits for who looks.
//
// It imports grant, limiter, oci, gpu and monitor/node; the agent (its metrics, its page,
// its audit) and the CLI call it.
package view

import (
	"time"

	"github.com/gpuslice/gpuslice/nvidia"
)

// Node is a node's GPUs and containers. Field names are those of the JSON that
// `gpuslice status -o json` and the agent's /api/v1/view give.
type Node struct {
	Name          string      `json:"name"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   string      `json:"cudaVersion"`
	GPUsReadAt    time.Time   `json:"gpusReadAt"`
	GPUs          []GPU       `json:"gpus"`
	Containers    []Container `json:"containers"`
	// Problems are what could not be read, for people.
	Problems []string `json:"problems,omitempty"`
}

// GPU is one GPU, or one MIG device: what it has and what of it is granted.
type GPU struct {
	// Node is the GPU's, where several nodes are shown as one (Add).
	Node  string `json:"node,omitempty"`
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // the GPU's, also of its MIG devices
	Model string `json:"model"`
	// MIGProfile is there of MIG devices.
	MIGProfile string `json:"migProfile,omitempty"`
	// MIG says more of one, for metrics; nil of a GPU.
	MIG               *MIG  `json:"-"`
	MemoryMiB         int64 `json:"memoryMiB"`
	GrantableMiB      int64 `json:"grantableMemoryMiB"`
	GrantedMemoryMiB  int64 `json:"grantedMemoryMiB"`
	GrantableCores    int   `json:"grantableCores"`
	GrantedCores      int   `json:"grantedCores"`
	GrantableSlots    int   `json:"grantableContainers"`
	GrantedContainers int   `json:"containers"`
	// UsedBytes is what the containers account for, each up to its limit, not what NVML
	// sees (Telemetry).
	UsedBytes uint64 `json:"usedBytes"`
	// Healthy is false where the agent has said why it isn't, in Unhealthy.
	Healthy   bool   `json:"healthy"`
	Unhealthy string `json:"unhealthy,omitempty"`
	// Cordoned says that it gets no new container (gpuslice cordon on the node); a MIG
	// device doesn't either where its GPU is cordoned.
	Cordoned bool `json:"cordoned,omitempty"`
	// Telemetry is what NVML said last; nil where nobody asked it.
	Telemetry *nvidia.Telemetry `json:"telemetry,omitempty"`
}

// MIG is what a MIG device is of, by NVML's ids.
type MIG struct {
	GPU                          string
	GPUInstance, ComputeInstance int
}

// Container is one entry of the ledger.
type Container struct {
	// Node is the container's, where several nodes are shown as one (Add).
	Node        string    `json:"node,omitempty"`
	ContainerID string    `json:"containerID"`
	Pod         string    `json:"pod,omitempty"` // namespace/name
	PodUID      string    `json:"podUID,omitempty"`
	Name        string    `json:"container"`
	Owner       string    `json:"owner"`
	State       string    `json:"state"`
	Enforcement string    `json:"enforcement"`
	CreatedAt   time.Time `json:"createdAt"`
	Shares      []Share   `json:"shares"`
	// Blocks are the GPUs that nothing is granted on because of this container, whose
	// grant is not known. It is there with State "blocking" only; empty: all GPUs.
	Blocks []string `json:"blocks,omitempty"`
	// UsageProblem is why the container's usage file can't be read: its use counts as none.
	UsageProblem string `json:"usageProblem,omitempty"`
	// UsageUnknown says that this is no fault of the container: its file is of another
	// version than this program knows.
	UsageUnknown bool `json:"usageUnknown,omitempty"`

	// problem is all that people are told of it.
	problem string
}

// Share is a container's part of one GPU, and what it uses of it.
type Share struct {
	UUID        string `json:"uuid"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	UsedBytes   uint64 `json:"usedBytes"`
	// ContextBytes are those of UsedBytes that CUDA contexts have.
	ContextBytes uint64 `json:"contextBytes"`
	// ResidueBytes is what the driver sees of the container beyond that.
	ResidueBytes uint64 `json:"residueBytes"`
	Processes    int    `json:"processes"`
	// Compute time while the share was enforced (Enforced), in all: what launches were charged, how
	// long they waited for it, and how many they were.
	ComputeNanoseconds   uint64 `json:"computeNs"`
	ThrottledNanoseconds uint64 `json:"throttledNs"`
	Launches             uint64 `json:"launches"`
	// LastLaunch is when it launched last, to some milliseconds; zero: never, or not known.
	LastLaunch time.Time `json:"lastLaunch,omitzero"`
	// RefusedAllocations are those that the limit has refused.
	RefusedAllocations uint64 `json:"refusedAllocations"`
	// Enforced says that launches are charged to the share of compute time now. While they
	// aren't, for it has no limit or its policy lets it have an idle GPU, ComputeNanoseconds
	// and Launches stand still, however much it works.
	Enforced bool `json:"enforced,omitempty"`
	// CoreUsedPercent is the part of the GPU's time that NVML says it had, lately; nil
	// where nobody asked NVML.
	CoreUsedPercent *float64 `json:"coreUsedPercent,omitempty"`
}
