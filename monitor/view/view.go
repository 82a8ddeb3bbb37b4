// Package view reads a node's grants and use from node.json, the ledger and the usage files. It takes no lock.
package view

import (
	"time"

	"github.com/gpuslice/gpuslice/nvidia"
)

// Node is a node's GPUs and containers, as in `gpuslice status -o json` and the agent's /api/v1/view.
type Node struct {
	Name          string      `json:"name"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   string      `json:"cudaVersion"`
	GPUsReadAt    time.Time   `json:"gpusReadAt"`
	GPUs          []GPU       `json:"gpus"`
	Containers    []Container `json:"containers"`
	Problems      []string    `json:"problems,omitempty"`
}

type GPU struct {
	// Node is set by Add.
	Node  string `json:"node,omitempty"`
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // a MIG device has its GPU's
	Model string `json:"model"`
	// MIGProfile is set for MIG devices.
	MIGProfile        string `json:"migProfile,omitempty"`
	MIG               *MIG   `json:"-"`
	MemoryMiB         int64  `json:"memoryMiB"`
	GrantableMiB      int64  `json:"grantableMemoryMiB"`
	GrantedMemoryMiB  int64  `json:"grantedMemoryMiB"`
	GrantableCores    int    `json:"grantableCores"`
	GrantedCores      int    `json:"grantedCores"`
	GrantableReplicas int    `json:"grantableContainers"`
	GrantedContainers int    `json:"containers"`
	// UsedBytes is from the usage files, up to each container's limit.
	UsedBytes uint64 `json:"usedBytes"`
	Healthy   bool   `json:"healthy"`
	Unhealthy string `json:"unhealthy,omitempty"`
	// Cordoned: it gets no new containers (gpuslice cordon on the node).
	Cordoned bool `json:"cordoned,omitempty"`
	// Telemetry is from NVML; optional.
	Telemetry *nvidia.Telemetry `json:"telemetry,omitempty"`
}

// MIG has NVML's IDs of a MIG device.
type MIG struct {
	GPU                          string
	GPUInstance, ComputeInstance int
}

type Container struct {
	// Node is set by Add.
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
	// Blocks are the GPUs that a container with an unknown grant blocks; empty with State "blocking": all.
	Blocks []string `json:"blocks,omitempty"`
	// UsageProblem is why the usage file can't be read: its use counts as 0.
	UsageProblem string `json:"usageProblem,omitempty"`
	// UsageUnknown: the file has another version.
	UsageUnknown bool `json:"usageUnknown,omitempty"`

	// problem has all problems of the container.
	problem string
}

// Share is a container's share of a GPU, and its use.
type Share struct {
	UUID        string `json:"uuid"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	UsedBytes   uint64 `json:"usedBytes"`
	// ContextBytes is the part of UsedBytes in CUDA contexts.
	ContextBytes uint64 `json:"contextBytes"`
	// ResidueBytes is what the driver counts beyond that.
	ResidueBytes uint64 `json:"residueBytes"`
	Processes    int    `json:"processes"`
	// Charged and waited time and launches while the share was enforced.
	ComputeNanoseconds   uint64 `json:"computeNs"`
	ThrottledNanoseconds uint64 `json:"throttledNs"`
	Launches             uint64 `json:"launches"`
	// LastLaunch has a precision of some milliseconds; zero: never, or unknown.
	LastLaunch         time.Time `json:"lastLaunch,omitzero"`
	RefusedAllocations uint64    `json:"refusedAllocations"`
	// Enforced: launches are charged now.
	Enforced bool `json:"enforced,omitempty"`
	// CoreUsedPercent is the recent part of the GPU's time, from NVML; optional.
	CoreUsedPercent *float64 `json:"coreUsedPercent,omitempty"`
}
