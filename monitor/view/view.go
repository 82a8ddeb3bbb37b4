// Package view has the types in which a node's grants and use are reported: by the agent, and by the commands. Package
// nodeview reads them.
package view

import (
	"time"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// Node is a node's GPUs and containers, as in `gpuslice status -o json` and the agent's /api/v1/view.
type Node struct {
	Name          string      `json:"name"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   string      `json:"cudaVersion"`
	GPUsReadAt    time.Time   `json:"gpusReadAt"`
	GPUs          []GPU       `json:"gpus"`
	Containers    []Container `json:"containers"`
	// Violations are the audit's, of now; only in an agent's view.
	Violations []Violation `json:"violations,omitempty"`
	// Verification is the last report of gpuslice verify; only on the node, and where there is one.
	Verification *Verification `json:"verification,omitempty"`
	Problems     []string      `json:"problems,omitempty"`
}

// Verification is what the last report means for the node as it is now, as a condition of Kubernetes does.
type Verification struct {
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Violation is a process that uses a GPU beside or beyond its claim.
type Violation struct {
	// Node is set by Add.
	Node      string    `json:"node,omitempty"`
	Kind      string    `json:"kind"`
	Container string    `json:"container,omitempty"` // namespace/pod/container; empty: none
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
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
	// UseUnknown: the node's agent did not report, so that UsedBytes means nothing, and what is granted is from annotations.
	UseUnknown bool `json:"useUnknown,omitempty"`
	// GrantsUnknown: the annotations could not be read either.
	GrantsUnknown bool   `json:"grantsUnknown,omitempty"`
	Healthy       bool   `json:"healthy"`
	Unhealthy     string `json:"unhealthy,omitempty"`
	// Cordoned: it gets no new containers (gpuslice cordon on the node).
	Cordoned bool `json:"cordoned,omitempty"`
	// ComputeSource is where CoreUsedPercent of the shares comes from; empty: not known yet, and of MIG devices.
	ComputeSource hardware.TimeSource `json:"computeSource,omitempty"`
	// Telemetry is from NVML; optional.
	Telemetry *hardware.Telemetry `json:"telemetry,omitempty"`
}

// MIG has NVML's IDs of a MIG device.
type MIG struct {
	GPU                          string
	GPUInstance, ComputeInstance int
}

type Container struct {
	// Node is set by Add.
	Node        string `json:"node,omitempty"`
	ContainerID string `json:"containerID"`
	Pod         string `json:"pod,omitempty"` // namespace/name
	PodUID      string `json:"podUID,omitempty"`
	Name        string `json:"container"`
	Owner       string `json:"owner"`
	// State is one of api.StateActive to api.StateGranted.
	State       string    `json:"state"`
	Enforcement string    `json:"enforcement"`
	CreatedAt   time.Time `json:"createdAt"`
	Shares      []Share   `json:"shares"`
	// Blocks are the GPUs that a container with an unknown grant blocks; empty with State "blocking": all.
	Blocks []string `json:"blocks,omitempty"`
	// ResourceClaims are the requests of ResourceClaims that it has, "<UID>.<request>"; Members are all containers that have the
	// shares in common by these. Then ContainerID is the ID of their claim, and the pod and the name are those of the first.
	ResourceClaims []string `json:"resourceClaims,omitempty"`
	Members        []Member `json:"members,omitempty"`
	// UsageProblem is why the usage file can't be read: its use counts as 0.
	UsageProblem string `json:"usageProblem,omitempty"`
	// UsageUnknown: the file has another version.
	UsageUnknown bool `json:"usageUnknown,omitempty"`
}

// Member is one of the containers that have shares in common.
type Member struct {
	ContainerID string `json:"containerID"`
	Pod         string `json:"pod,omitempty"` // namespace/name
	Name        string `json:"container"`
}

// Share is a container's share of a GPU, and its use.
type Share struct {
	UUID        string `json:"uuid"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	UsedBytes   uint64 `json:"usedBytes"`
	// UseUnknown: the node's agent did not report; the fields below mean nothing.
	UseUnknown bool `json:"useUnknown,omitempty"`
	// ContextBytes is the part of UsedBytes in CUDA contexts.
	ContextBytes uint64 `json:"contextBytes"`
	// ResidueBytes is what the driver counts beyond that.
	ResidueBytes uint64 `json:"residueBytes"`
	Processes    int    `json:"processes"`
	// Time with work on the GPU, time that launches waited, and launches; by the limiter.
	ComputeNanoseconds   uint64 `json:"computeNs"`
	ThrottledNanoseconds uint64 `json:"throttledNs"`
	Launches             uint64 `json:"launches"`
	// LastLaunch has a precision of some milliseconds; zero: never, or unknown.
	LastLaunch         time.Time `json:"lastLaunch,omitzero"`
	RefusedAllocations uint64    `json:"refusedAllocations"`
	// CoreUsedPercent is the recent part of the GPU's time, from the GPU's ComputeSource; optional.
	CoreUsedPercent *float64 `json:"coreUsedPercent,omitempty"`
	// HoldsSince: since then a kernel holds the GPU beyond the share, while others wait. Without an agent it is as long ago as the container's debt.
	HoldsSince time.Time `json:"holdsSince,omitzero"`
}

// Add adds another node's GPUs, containers and problems with the node's name.
func (n *Node) Add(name string, other Node) {
	for _, c := range other.GPUs {
		c.Node = name
		n.GPUs = append(n.GPUs, c)
	}
	for _, c := range other.Containers {
		c.Node = name
		n.Containers = append(n.Containers, c)
	}
	for _, v := range other.Violations {
		v.Node = name
		n.Violations = append(n.Violations, v)
	}
	for _, p := range other.Problems {
		n.Problems = append(n.Problems, "node "+name+": "+p)
	}
}
