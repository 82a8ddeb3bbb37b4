// Package bounds limits the sizes of NRI's records of a node's pods and containers, so that
// the container runtime can always synchronise its NRI plugins. The NRI plugin refuses larger
// ones; `gpuslice doctor` looks for those that were created while the plugin was away.
//
// # Why
//
// ttrpc refuses messages above [Message] bytes. When a plugin connects, the runtime sends the
// records of all pods and all containers, split if one message is too small. Up to version
// 0.12.5 of github.com/containerd/nri (pkg/adaptation/plugin.go, synchronize and
// recalcObjsPerSyncMsg; docs/NRI-UPSTREAM.md) it splits in this way, with p pods and c
// containers in a message, and f the smaller of 0.9 and Message / (bytes of the message):
//
//  1. if a message with p + c <= 8 is too long, the synchronisation fails;
//  2. otherwise p and c become the integers below p*f and c*f;
//  3. if their sum is then below 8, both become 4, and the runtime panics if fewer than 4
//     pods or 4 containers are left;
//  4. if p becomes 0 while pods are left, or c while containers are left, they are never
//     sent: the runtime sends empty messages until the request's timeout.
//
// # The bounds
//
// If no record is above Message/10, 1 and 3 can't happen: a message of 10 records always fits,
// so a message that is too long has n > 10 records, n*f is at least 9, and the sum of two
// integers below p*f and c*f is at least 8. [Container] is a little less, for the tags and
// lengths around a record and for additions of the runtime after the container is created.
//
// 4 depends on the numbers of pods and containers. A pod may have [PodTotal] bytes with all
// its containers, so P pods have at most P*PodTotal, and the first split leaves
// p = P*f >= Message/PodTotal = 5 of them. The records arrive in random order, so a later
// split takes only a part of that. A pod can be without containers, so a pod's own record has
// a bound too: 110 pods of [Pod] bytes are 1.7 messages, so that two containers on the node
// are enough. TestBoundsKeepANodeSynchronisable runs NRI's own code on nodes at the bounds.
package bounds

// Bytes of a record as NRI encodes it.
const (
	// Message is the longest message of ttrpc.
	Message = 4 << 20
	// Pod bounds a pod's record, which is mainly its labels and annotations.
	Pod = 64 << 10
	// Container bounds a container's record: its environment, arguments, mounts and
	// annotations, with the plugin's additions.
	Container = 384 << 10
	// PodTotal bounds a pod's record and those of its running containers together.
	PodTotal = 768 << 10
	// Answer bounds the plugin's answer about one container. The longest message with it is
	// ValidateContainerAdjustment: the pod, the container, the answers of all plugins and
	// their owners.
	Answer = 256 << 10
	// ErrorText bounds the text of an error, which can quote text of a tenant.
	ErrorText = 4 << 10
)
