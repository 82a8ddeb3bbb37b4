package api

// The states of a container in reports, and of its claim in the ledger.
const (
	// StateActive counts against the GPUs.
	StateActive = "active"
	// StateReleased does not count; the container can still exist.
	StateReleased = "released"
	// StateCorrupt has an unreadable record, and can be an active container's.
	StateCorrupt = "corrupt"
	// StateBlocking is a container with an unknown grant, which blocks its GPUs.
	StateBlocking = "blocking"
	// StateGranted is by the annotation of the container's pod: the node did not report. No claim has it.
	StateGranted = "granted"
)

// Owners of claims. Each owner reconciles only its own claims.
const (
	OwnerNRI     = "nri"
	OwnerRuntime = "runtime"
)
