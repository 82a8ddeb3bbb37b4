package api

import "strings"

// What keeps a container within its share of a GPU, the strongest first. As the value of AnnotationIsolation it is the
// weakest that a pod accepts.
const (
	// IsolationHardware: a MIG device, or a GPU of which no other container has a part.
	IsolationHardware = "hardware"
	// IsolationDriver: the driver limits the memory of the container's control group.
	IsolationDriver = "driver"
	// IsolationLimiter: the limiter in the container's processes.
	IsolationLimiter = "limiter"
	IsolationAny     = "any"
)

// IsolationOfShare is that of a share of a GPU on a node, by what limits memory there (oci.MemoryEnforcement; auto by its
// last probe). The driver does not limit the memory of an oversubscribed GPU.
func IsolationOfShare(memoryEnforcement string, oversubscribed bool) string {
	if strings.HasPrefix(memoryEnforcement, "native") && !oversubscribed {
		return IsolationDriver
	}
	return IsolationLimiter
}
