package api

import (
	"slices"
	"strings"
)

// Annotations of pods. The scheduler writes them, except where a comment names another writer.
const (
	// AnnotationGrant is gpuslice's grant, keyed by container name (grant.DecodeGrant).
	AnnotationGrant = "gpuslice.io/grant"
	// AnnotationSignature is the signature of AnnotationGrant (grant.SigningKey).
	AnnotationSignature = "gpuslice.io/grant-signature"
	// AnnotationResize is a user's request to resize the running pod. The scheduler removes it.
	AnnotationResize = "gpuslice.io/resize"
	// AnnotationResizeStatus is the result of the last AnnotationResize.
	AnnotationResizeStatus = "gpuslice.io/resize-status"
	// AnnotationRequeued has the time at which the extender made kube-scheduler retry the pod, or a new leader changed it.
	AnnotationRequeued = "gpuslice.io/requeued"
	// AnnotationBindUnclear is written to change a pod if the result of its binding is unknown. Its value is never read.
	AnnotationBindUnclear = "gpuslice.io/bind-unclear"
	// AnnotationLeader is the leader that wrote last: the Lease's holderIdentity, leaseTransitions and UID, with "/" between. An admission
	// policy compares it with the Lease when a grant changes. A new leader writes it to pending pods.
	AnnotationLeader = "gpuslice.io/leader"

	// AnnotationTolerance is for NRI's default validator: containers of the pod can be created without the node's
	// agent. Only operators may set it. A suffix "/pod" or "/container.NAME" limits it.
	AnnotationTolerance = "gpuslice.io/tolerate-missing-plugins"
)

// Annotations of pods and of containers without Kubernetes, which their author writes.
const (
	// AnnotationCoreCeiling is a soft ceiling, in percent of a GPU; the second is gpu-manager's.
	AnnotationCoreCeiling      = "gpuslice.io/core-ceiling"
	AnnotationVcudaCoreCeiling = "tencent.com/vcuda-core-limit"
	// AnnotationGroupMin is how many pods of the pod's group have to be placed together.
	AnnotationGroupMin = "gpuslice.io/pod-group-min"
	// AnnotationGroupTopology is a label of nodes: all pods of the group get nodes with the same value of it.
	AnnotationGroupTopology = "gpuslice.io/pod-group-topology"
	// AnnotationMinMemory is MiB of each GPU: an operator's "gpuslice defrag" may resize the running pod down to it.
	AnnotationMinMemory = "gpuslice.io/min-memory"
	// AnnotationIsolation is the weakest isolation that a pod's author accepts (grant.RequestedIsolation).
	AnnotationIsolation = "gpuslice.io/isolation"
	// AnnotationVolcanoGroup and AnnotationVolcanoGroupNew are Volcano's names of a pod's group.
	AnnotationVolcanoGroup    = "scheduling.k8s.io/group-name"
	AnnotationVolcanoGroupNew = "scheduling.volcano.sh/group-name"

	// HAMi's, which select GPUs and policies.
	AnnotationUseTypes   = "nvidia.com/use-gputype"
	AnnotationAvoidTypes = "nvidia.com/nouse-gputype"
	AnnotationUseUUIDs   = "nvidia.com/use-gpuuuid"
	AnnotationAvoidUUIDs = "nvidia.com/nouse-gpuuuid"
	AnnotationNUMABind   = "nvidia.com/numa-bind"
	AnnotationMode       = "nvidia.com/vgpu-mode"
	AnnotationNodePolicy = "hami.io/node-scheduler-policy"
	AnnotationGPUPolicy  = "hami.io/gpu-scheduler-policy"
	AnnotationWeights    = "hami.io/device-scoring-weights"

	// Of a container without Kubernetes, with the meaning of the variables EnvMemory to EnvSlice.
	AnnotationMemory   = "gpuslice.io/memory"
	AnnotationCores    = "gpuslice.io/cores"
	AnnotationDevices  = "gpuslice.io/devices"
	AnnotationPriority = "gpuslice.io/priority"
	AnnotationSlice    = "gpuslice.io/slice"
)

// Annotations of containers. The node writes them; pod authors can't.
const (
	// AnnotationReplicas has the replicas that the kubelet chose, "<UUID>::<n>,…", n from 0.
	AnnotationReplicas = "gpuslice.io/replicas"
	// AnnotationMIGPrefix begins the annotation of a MIG resource ("gpuslice.io/mig-1g.10gb"): the devices that
	// the kubelet chose, "MIG-<UUID>::0,MIG-<UUID>::0". A node that offers MIG devices as GPUs uses
	// AnnotationReplicas.
	AnnotationMIGPrefix = "gpuslice.io/mig-"
	// AnnotationVcudaCore and AnnotationVcudaMemory have the devices of gpu-manager's resources.
	AnnotationVcudaCore   = "gpuslice.io/vcuda-core"
	AnnotationVcudaMemory = "gpuslice.io/vcuda-memory"
	// AnnotationShares has the shares that the container was created with, in case the ledger is lost.
	AnnotationShares = "gpuslice.io/shares"
	// AnnotationEnforcement is how the container's limits are enforced.
	AnnotationEnforcement = "gpuslice.io/enforcement"
)

// HAMi's annotations of pods.
const (
	// AnnotationHAMiToAllocate is emptied position by position by HAMi's device plugin.
	AnnotationHAMiToAllocate = "hami.io/vgpu-devices-to-allocate"
	// AnnotationHAMiAllocated is the same value, never emptied.
	AnnotationHAMiAllocated = "hami.io/vgpu-devices-allocated"
	// AnnotationHAMiNode is the node of the devices.
	AnnotationHAMiNode = "hami.io/vgpu-node"
	// By these HAMi's device plugin finds the pod to serve.
	AnnotationHAMiTime      = "hami.io/vgpu-time"
	AnnotationHAMiBindPhase = "hami.io/bind-phase"
	AnnotationHAMiBindTime  = "hami.io/bind-time"
	AnnotationHAMiMIG       = "hami.io/vgpu-mig-allocations"
)

// Volcano's annotations of pods, with the meaning of HAMi's.
const (
	AnnotationVolcanoAllocated  = "volcano.sh/vgpu-ids-new"
	AnnotationVolcanoToAllocate = "volcano.sh/devices-to-allocate"
	AnnotationVolcanoNode       = "volcano.sh/vgpu-node"
)

// gpu-manager's annotations of pods.
const (
	AnnotationTencentPredicatePrefix = "tencent.com/predicate-"
	AnnotationTencentAssigned        = "tencent.com/gpu-assigned"
)

// AnnotationQuotaPool of a ResourceQuota is a pool of quotas: its namespace may borrow what others of the pool do not use.
// Operators set it.
const AnnotationQuotaPool = "gpuslice.io/quota-pool"

const (
	// AnnotationNodeGPUs has the node's GPUs, a NodeGPUs. The agent writes it.
	AnnotationNodeGPUs = "gpuslice.io/node-gpus"
	// AnnotationNodeRefused has the pods with grants that the node can't serve, a list of RefusedPod. The agent writes it, and the
	// scheduler evicts the pods.
	AnnotationNodeRefused = "gpuslice.io/refused-pods"
	// AnnotationHAMiRegister and AnnotationHAMiScore have the same for HAMi: lists of HAMiGPU and of HAMiScore.
	AnnotationHAMiRegister = "hami.io/node-nvidia-register"
	AnnotationHAMiScore    = "hami.io/node-nvidia-score"
	// AnnotationHAMiHandshake has the schedulers' requests for a sign of life, and the agent's answers.
	AnnotationHAMiHandshake = "hami.io/node-handshake"
	// AnnotationVolcanoRegister and AnnotationVolcanoHandshake are the same for Volcano's vGPU scheduling.
	AnnotationVolcanoRegister  = "volcano.sh/node-vgpu-register"
	AnnotationVolcanoHandshake = "volcano.sh/node-vgpu-handshake"
	// AnnotationHAMiCordon lists GPUs that get no new containers. An operator sets it.
	AnnotationHAMiCordon = "hami.io/device-cordon"
	// AnnotationDefragCordon has the GPUs of AnnotationHAMiCordon that "gpuslice defrag" cordoned, with the call and its deadline.
	AnnotationDefragCordon = "gpuslice.io/defrag-cordon"
	// AnnotationMigration is the state of "kubectl gpuslice migrate" for the node.
	AnnotationMigration = "gpuslice.io/migration"
	// AnnotationHAMiLock is held by the pod that HAMi's device plugin serves: "<RFC 3339>,<namespace>,<pod>".
	AnnotationHAMiLock = "hami.io/mutex.lock"
)

// Values of AnnotationHAMiBindPhase.
const (
	HAMiAllocating = "allocating" // HAMi's device plugin looks for the pod
	HAMiSuccess    = "success"    // it has its devices
)

// Owned are the annotations of pods that only the scheduler and the node may write. "*" ends a prefix. The admission
// policies are generated from it.
var Owned = []string{
	AnnotationGrant,
	AnnotationSignature,
	AnnotationResizeStatus,
	AnnotationReplicas, // of containers only
	AnnotationMIGPrefix + "*",
	AnnotationHAMiNode,
	AnnotationHAMiToAllocate,
	AnnotationHAMiAllocated,
	AnnotationHAMiTime,
	AnnotationHAMiBindPhase,
	AnnotationHAMiBindTime,
	AnnotationHAMiMIG,
	AnnotationVolcanoAllocated,
	AnnotationVolcanoToAllocate,
	AnnotationVolcanoNode,
	AnnotationTencentPredicatePrefix + "*",
	AnnotationTencentAssigned,
}

// prefix begins gpuslice's annotations.
const prefix = "gpuslice.io/"

// ofContainers are gpuslice's annotations that a container without Kubernetes can have. "*" ends a prefix.
var ofContainers = []string{
	AnnotationMemory, AnnotationCores, AnnotationDevices, AnnotationPriority, AnnotationSlice, AnnotationCoreCeiling,
	AnnotationGrant, AnnotationSignature, AnnotationGroupMin, AnnotationLeader, AnnotationMinMemory, AnnotationGroupTopology, AnnotationTolerance + "*",
	AnnotationResize, AnnotationResizeStatus, AnnotationRequeued, AnnotationBindUnclear,
	AnnotationReplicas, AnnotationMIGPrefix + "*", AnnotationVcudaCore, AnnotationVcudaMemory, AnnotationShares, AnnotationEnforcement,
}

// IsUnknown reports whether key has gpuslice's prefix, and no meaning.
func IsUnknown(key string) bool { return strings.HasPrefix(key, prefix) && !matches(ofContainers, key) }

// IsOwned reports whether key matches Owned.
func IsOwned(key string) bool { return matches(Owned, key) }

func matches(patterns []string, key string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		start, is := strings.CutSuffix(pattern, "*")
		return key == pattern || is && strings.HasPrefix(key, start)
	})
}
