// Package grant holds what was decided: which shares of which cards a container
// may use, how that decision is written on a pod, and the node's ledger of the
// decisions in force.
//
// It reads three wire formats (HAMi's positional annotation, gpuslice's own JSON
// keyed by container name, later gpu-manager's requests) into one type, checks
// them, and books them. It imports nothing of ours but gpu types, and it is called by the
// NRI plugin, the OCI runtime wrapper and the CLI.
package grant

// Share is one container's part of one card.
type Share struct {
	// UUID names the card as NVML does: "GPU-…" or "MIG-…".
	UUID string `json:"uuid"`
	// MemoryMiB is the hard limit of device memory, in MiB.
	MemoryMiB int64 `json:"memoryMiB"`
	// CorePercent is the share of the card's compute time, 1 to 100. 0 means
	// that the share books no compute time and is not held to any.
	CorePercent int `json:"cores"`
}

// Grant is everything one container was given. The order of the shares is the
// order of the cards inside the container.
type Grant struct {
	// Container is the container's name inside its pod.
	Container string  `json:"container"`
	Shares    []Share `json:"shares"`
}
