// Package grant holds what was decided: which shares of which GPUs a container
// may use, how that decision is written on a pod, and the node's ledger of the
// decisions in force.
//
// It reads two wire formats into one type, HAMi's positional annotation
// (DecodeHAMi) and gpuslice's own JSON keyed by container name (DecodeGrant),
// ties them to a container (FromPod), and books them (Ledger). It imports
// nothing of ours but gpu types, and it is called by the NRI plugin, the OCI
// runtime wrapper and the CLI. What needs gRPC, the kubelet's answer to "which
// containers does this pod have", is in the directory podresources, so that a
// short-lived caller does not carry it.
package grant

// Share is one container's part of one GPU.
type Share struct {
	// UUID names the GPU as NVML does: "GPU-…" or "MIG-…".
	UUID string `json:"uuid"`
	// MemoryMiB is the hard limit of device memory, in MiB.
	MemoryMiB int64 `json:"memoryMiB"`
	// CorePercent is the share of the GPU's compute time, 1 to 100. 0 means
	// that the share books no compute time and is not held to any.
	CorePercent int `json:"cores"`
}

// Source says what a grant was read from.
type Source string

const (
	// SourceNamed is gpuslice.io/grant, keyed by container name.
	SourceNamed Source = "gpuslice"
	// SourceHAMi is HAMi's positional annotation.
	SourceHAMi Source = "hami"
	// SourceReplicas is no scheduler's: the equal share of the replicas that the
	// kubelet chose (FromReplicas).
	SourceReplicas Source = "replicas"
	// SourceMIG is no scheduler's: the MIG devices that the kubelet chose (FromMIG).
	SourceMIG Source = "mig"
)

// Grant is everything one container was given. The order of the shares is the
// order of the GPUs inside the container.
type Grant struct {
	// Container is the container's name inside its pod.
	Container string  `json:"container"`
	Shares    []Share `json:"shares"`
	// Source is the format the grant was read from.
	Source Source `json:"source,omitempty"`
	// Slot is the position in HAMi's annotation, from 0; nil for a grant that
	// is keyed by name. Two containers never hold the same slot of a pod.
	Slot *int `json:"slot,omitempty"`
}
