// Package grant reads and writes grants: which shares of which GPUs each container of a pod gets. [FromPod] returns
// one container's grant, from gpuslice.io/grant or HAMi's positional annotation, and verifies its signature.
// [CheckGPUs] compares it with the node's GPUs.
package grant

// Share is one container's part of one GPU.
type Share struct {
	// UUID is NVML's name of the GPU: "GPU-…" or "MIG-…".
	UUID string `json:"uuid"`
	// MemoryMiB is the hard limit of device memory.
	MemoryMiB int64 `json:"memoryMiB"`
	// CorePercent is the share of the compute time, 1 to 100. 0: none is reserved, and there is no limit.
	CorePercent int `json:"cores"`
}

// Source is where a grant comes from.
type Source string

const (
	// SourceNamed is gpuslice.io/grant, keyed by container name.
	SourceNamed Source = "gpuslice"
	// SourceHAMi is HAMi's positional annotation.
	SourceHAMi Source = "hami"
	// SourceReplicas is the equal share of the replicas that the kubelet chose (FromReplicas).
	SourceReplicas Source = "replicas"
	// SourceMIG are the MIG devices that the kubelet chose (FromMIG).
	SourceMIG Source = "mig"
)

// Grant is all that one container gets. The shares are in the order of the GPUs in the container.
type Grant struct {
	Container string  `json:"container"`
	Shares    []Share `json:"shares"`
	Source    Source  `json:"source,omitempty"`
	// Position is the place in HAMi's annotation, from 0; nil for a grant by name.
	Position *int `json:"position,omitempty"`
}
