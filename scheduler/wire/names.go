// Package wire reads and writes the annotations of nodes and pods, ours and HAMi's, so that HAMi's scheduler
// works with our nodes and our scheduler with HAMi's. One limit on HAMi's nodes: its device plugin serves any
// pod in phase "allocating", so its scheduler binds one pod at a time under hami.io/mutex.lock. Ours does not
// take that lock: pods bound to one such node at the same time may get each other's GPUs.
package wire

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

const (
	AnnotationGPUs = "gpuslice.io/node-gpus"
	// HAMi's: the GPUs, and their links.
	AnnotationRegister = "hami.io/node-nvidia-register"
	AnnotationScore    = "hami.io/node-nvidia-score"
	// AnnotationCordon lists GPUs that get no new containers. An operator sets it.
	AnnotationCordon = "hami.io/device-cordon"
)

// HAMi's annotations of pods, by which its device plugin finds the pod to serve.
const (
	AnnotationTime      = "hami.io/vgpu-time"
	AnnotationBindPhase = "hami.io/bind-phase"
	AnnotationBindTime  = "hami.io/bind-time"
)

const bindAllocating = "allocating"

// Owned are the pod annotations that only the scheduler and the node may write; "*" ends a prefix.
var Owned = []string{
	grant.AnnotationGrant,
	grant.AnnotationSignature,
	grant.AnnotationResizeStatus,
	grant.AnnotationReplicas, // of containers only
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

func IsOwned(key string) bool {
	return slices.ContainsFunc(Owned, func(o string) bool {
		prefix, is := strings.CutSuffix(o, "*")
		return key == o || is && strings.HasPrefix(key, prefix)
	})
}
