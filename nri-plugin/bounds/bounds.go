// Package bounds limits the sizes of NRI's records of pods and containers, so that the runtime can always
// synchronise its NRI plugins. The NRI plugin refuses larger ones; `gpuslice doctor` finds older ones.
// docs/NRI-UPSTREAM.md derives the bounds, and TestBoundsKeepANodeSynchronisable runs NRI's code at them.
package bounds

// Bytes of a record as NRI encodes it.
const (
	// Message is the longest message of ttrpc.
	Message = 4 << 20
	// Pod bounds a pod's record: its labels and annotations.
	Pod = 64 << 10
	// Container bounds a container's record.
	Container = 384 << 10
	// PodTotal bounds the records of a pod and its running containers together.
	PodTotal = 768 << 10
	// Answer bounds the plugin's adjustment. ValidateContainerAdjustment has those of all plugins.
	Answer = 256 << 10
	// ErrorText bounds the text of an error, which can quote a tenant's text.
	ErrorText = 4 << 10
)
