// Package bounds limits the sizes of NRI's records of pods and containers, so that the runtime can always
// synchronise its NRI plugins. The NRI plugin refuses larger ones; `gpuslice doctor` finds older ones.
//
// ttrpc rejects messages above [Message] bytes. NRI up to 0.12.5 (pkg/adaptation/plugin.go, synchronize and
// recalcObjsPerSyncMsg; docs/NRI-UPSTREAM.md) splits the records of all pods and containers: a message with p
// pods and c containers that is too long is sent with p*f and c*f, f = min(0.9, Message/bytes). That fails if
// p + c <= 8, or if p or c becomes 0.
//
// With records of at most Message/10, a message of 10 records fits, so one that is too long has n > 10
// records, and n*f >= 9. [Container] is a little less, for the encoding and later additions. With at most
// [PodTotal] bytes for a pod and its containers, the first split keeps Message/PodTotal = 5 pods. [Pod] bounds
// pods without containers. TestBoundsKeepANodeSynchronisable runs NRI's own code at the bounds.
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
