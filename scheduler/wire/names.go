package wire

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// Annotations of nodes.
const (
	// AnnotationGPUs has a node's GPUs in our form.
	AnnotationGPUs = "gpuslice.io/node-gpus"
	// AnnotationRegister and AnnotationScore are HAMi's: the GPUs, and their links.
	AnnotationRegister = "hami.io/node-nvidia-register"
	AnnotationScore    = "hami.io/node-nvidia-score"
	// AnnotationCordon is an operator's list of GPUs that get no new container.
	AnnotationCordon = "hami.io/device-cordon"
)

// Annotations of pods, besides those of package grant. They are HAMi's: its node half
// finds the pod that it has to serve by them.
const (
	AnnotationTime      = "hami.io/vgpu-time"
	AnnotationBindPhase = "hami.io/bind-phase"
	AnnotationBindTime  = "hami.io/bind-time"
)

// bindAllocating is the phase of a pod whose devices the node has yet to give out.
const bindAllocating = "allocating"

// Owned are the annotations of pods that only the scheduler, or on its behalf the node,
// may write; what ends in "*" is a prefix. A pod that brings one along is forged.
var Owned = []string{
	grant.AnnotationGrant,
	grant.AnnotationSignature,
	grant.AnnotationResizeStatus,
	grant.AnnotationReplicas, // of containers, never of pods
	grant.AnnotationMIGPrefix + "*",
	grant.AnnotationNode,
	grant.AnnotationToAllocate,
	grant.AnnotationAllocated,
	AnnotationTime,
	AnnotationBindPhase,
	AnnotationBindTime,
	"hami.io/vgpu-mig-allocations",
	"tencent.com/predicate-*",
	"tencent.com/gpu-assigned",
}

// IsOwned says whether an annotation is one of Owned.
func IsOwned(key string) bool {
	return slices.ContainsFunc(Owned, func(o string) bool {
		prefix, is := strings.CutSuffix(o, "*")
		return key == o || is && strings.HasPrefix(key, prefix)
	})
}
