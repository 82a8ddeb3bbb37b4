package request

// Names are the resource names; an empty one disables the resource.
type Names struct {
	// HAMi's.
	Count, Memory, MemoryPercentage, Cores, Priority string
	// gpu-manager's.
	VcudaCore, VcudaMemory string
}

// DefaultNames are HAMi's and gpu-manager's.
func DefaultNames() Names {
	return Names{
		Count: "nvidia.com/gpu", Memory: "nvidia.com/gpumem", MemoryPercentage: "nvidia.com/gpumem-percentage",
		Cores: "nvidia.com/gpucores", Priority: "nvidia.com/priority",
		VcudaCore: "tencent.com/vcuda-core", VcudaMemory: "tencent.com/vcuda-memory",
	}
}

// Options are a cluster's settings, with HAMi's names.
type Options struct {
	Names Names
	// DefaultMemoryMiB is for containers without memory; 0: all of the GPU.
	DefaultMemoryMiB int64
	// DefaultCores is for containers without cores; 0: unlimited.
	DefaultCores int
	// DefaultCount is for containers with only memory or cores.
	DefaultCount int
	// MemoryFactor is the MiB in one unit of Names.Memory.
	MemoryFactor int64
}

// DefaultOptions are HAMi's defaults.
func DefaultOptions() Options {
	return Options{Names: DefaultNames(), DefaultCount: 1, MemoryFactor: 1}
}
