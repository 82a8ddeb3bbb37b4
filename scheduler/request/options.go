package request

// Names are the resources' names. A resource without a name is not known.
type Names struct {
	// HAMi's.
	Count, Memory, MemoryPercentage, Cores, Priority string
	// gpu-manager's.
	VcudaCore, VcudaMemory string
}

// DefaultNames are the names that HAMi and gpu-manager give them.
func DefaultNames() Names {
	return Names{
		Count: "nvidia.com/gpu", Memory: "nvidia.com/gpumem", MemoryPercentage: "nvidia.com/gpumem-percentage",
		Cores: "nvidia.com/gpucores", Priority: "nvidia.com/priority",
		VcudaCore: "tencent.com/vcuda-core", VcudaMemory: "tencent.com/vcuda-memory",
	}
}

// Options are a cluster's settings, by HAMi's names.
type Options struct {
	Names Names
	// DefaultMemoryMiB is of each GPU where a container says nothing of memory; 0: all of it.
	DefaultMemoryMiB int64
	// DefaultCores is of each GPU where a container says nothing of cores; 0: not limited.
	DefaultCores int
	// DefaultCount is the number of GPUs of a container that asks for memory or cores alone.
	DefaultCount int
	// MemoryFactor is how many MiB one unit of Names.Memory is.
	MemoryFactor int64
}

// DefaultOptions are HAMi's defaults.
func DefaultOptions() Options {
	return Options{Names: DefaultNames(), DefaultCount: 1, MemoryFactor: 1}
}
