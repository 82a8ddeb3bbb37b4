package api

// Extended resources. HAMi's default names, and gpu-manager's.
const (
	ResourceGPU              = "nvidia.com/gpu"
	ResourceMemory           = "nvidia.com/gpumem"            // MiB of each GPU
	ResourceMemoryPercentage = "nvidia.com/gpumem-percentage" // of each GPU
	ResourceCores            = "nvidia.com/gpucores"          // percent of each GPU's compute time
	ResourcePriority         = "nvidia.com/priority"          // 0 (high) or 1 (low)

	ResourceVcudaCore   = "tencent.com/vcuda-core"   // 100 for a GPU
	ResourceVcudaMemory = "tencent.com/vcuda-memory" // blocks of VcudaMemoryMiB
)

// ResourceMIGPrefix begins the names of resources for MIG instances, of NVIDIA's device plugin and of those that are made from it.
const ResourceMIGPrefix = "nvidia.com/mig-"

// Volcano's extended resources, with which a container has a position in its annotations.
const (
	ResourceVolcanoGPU    = "volcano.sh/vgpu-number"
	ResourceVolcanoMemory = "volcano.sh/vgpu-memory"
)

const (
	// VcudaCores is the number of gpu-manager's core devices per GPU.
	VcudaCores = 100
	// VcudaMemoryMiB is the size of gpu-manager's memory device.
	VcudaMemoryMiB = 256
)

const (
	// LabelGroup is the name of a pod's group in its namespace: the group is placed completely or not at all.
	LabelGroup = "scheduling.x-k8s.io/pod-group"
	// LabelPrefix begins the labels that the agent writes to its node.
	LabelPrefix = "gpuslice.io/gpu."
	// LabelHasGPU selects the nodes that get an agent, with the value "true": an operator writes it, or the chart's discovery.
	LabelHasGPU = "gpuslice.io/has-gpu"
	// LabelHAMiWebhook, with the value "ignore", exempts pods and namespaces from HAMi's webhook.
	LabelHAMiWebhook = "hami.io/webhook"
	// LabelMigrated selects the nodes that "kubectl gpuslice migrate" has switched, with the value "true".
	LabelMigrated = "gpuslice.io/migrated"
	// LabelTencentModel and LabelTencentPool are gpu-manager's labels of nodes, for quotas.
	LabelTencentModel = "gaia.tencent.com/gpu-model"
	LabelTencentPool  = "gaia.tencent.com/gpu-pool"
)

// NVIDIAPrefix begins NVIDIA's labels of nodes.
const NVIDIAPrefix = "nvidia.com/"

// NVIDIALabels are the labels of NVIDIA's feature discovery by which people select nodes. gpu.present is not one of them:
// it selects the nodes that get an agent, which would keep itself there.
var NVIDIALabels = []string{
	"nvidia.com/gpu.product", "nvidia.com/gpu.family", "nvidia.com/gpu.memory", "nvidia.com/gpu.count",
	"nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor", "nvidia.com/mig.capable",
	"nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver-version.minor",
	"nvidia.com/cuda.driver-version.revision",
	"nvidia.com/cuda.runtime-version.full", "nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime-version.minor",
}

// Kinds of CDI devices.
const (
	CDIKindDriver = "nvidia.com/gpu"    // whole GPUs, of NVIDIA's toolkit
	CDIKindSlice  = "gpuslice.io/slice" // an operator's slices
)

// Variables of a request without Kubernetes.
const (
	EnvPrefix   = "GPUSLICE_"
	EnvMemory   = "GPUSLICE_MEMORY"
	EnvCores    = "GPUSLICE_CORES"
	EnvDevices  = "GPUSLICE_DEVICES"
	EnvPriority = "GPUSLICE_PRIORITY"
	EnvSlice    = "GPUSLICE_SLICE"
)

// Variables of containers with HAMi's names, units and meanings (its device plugin's server.go, HAMi-core's README).
const (
	// EnvVisibleDevices selects the GPUs that NVIDIA's runtime injects.
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// EnvMemoryLimit is the limit of every GPU, "<MiB>m"; with "_<i>", of the container's i-th GPU.
	EnvMemoryLimit = "CUDA_DEVICE_MEMORY_LIMIT"
	// EnvCoreLimit is the share of compute time of every GPU, in percent (0: no limit); with "_<i>", of the i-th GPU.
	EnvCoreLimit = "CUDA_DEVICE_SM_LIMIT"
	// EnvSharedCache is the path of the usage file.
	EnvSharedCache = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// EnvOversubscribe is "true" if allocations may use host memory.
	EnvOversubscribe = "CUDA_OVERSUBSCRIBE"
	// EnvCorePolicy is an oci.CorePolicy.
	EnvCorePolicy = "GPU_CORE_UTILIZATION_POLICY"
	// EnvTaskPriority is "0" (high) or "1" (low).
	EnvTaskPriority = "CUDA_TASK_PRIORITY"
	// EnvDisableControl disables the limiter, here only with the operator's permission.
	EnvDisableControl = "CUDA_DISABLE_CONTROL"
	// EnvRedirect makes HAMi-core load another libcuda.
	EnvRedirect = "CUDA_REDIRECT"
)

// VisibleVoid is the EnvVisibleDevices with which NVIDIA's runtime does nothing; "none" injects the driver.
const VisibleVoid = "void"
