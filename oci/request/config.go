package request

import (
	"path/filepath"
)

// DefaultPath is where the operator's config is.
const DefaultPath = "/etc/gpuslice/runtime.yaml"

// Config is what the operator says of containers that are started without Kubernetes:
// /etc/gpuslice/runtime.yaml, whose keys are described in install/runtime.example.yaml
// and, for editors, in install/runtime.schema.json.
type Config struct {
	// Path is the file that it was read from, or would have been.
	Path string

	// StateDir is the directory of the node's ledger (--state-dir of the agent).
	StateDir string
	// LibraryDir is the directory of the limiter (--library-dir of the agent).
	LibraryDir string
	// NodeFile is the agent's account of the GPUs; empty is node.json in StateDir.
	NodeFile string
	// NVMLLibrary is asked for the GPUs where there is no such account.
	NVMLLibrary string
	// Runtimes are the low-level runtimes, names or absolute paths: the first that is
	// there is used.
	Runtimes []string
	// NvidiaRuntime is NVIDIA's container runtime, a name or an absolute path.
	NvidiaRuntime string
	// ExemptNamespaces are Kubernetes namespaces in which NVIDIA's runtime gives containers
	// the GPUs that they request, whole GPUs too. The agent's namespace must be one of them.
	ExemptNamespaces []string

	// LimiterMode is preload, library or auto.
	LimiterMode string
	// CorePolicy is default, force or disable, as oci.CorePolicy has them.
	CorePolicy string
	// DeviceInjection is auto, cdi or envvar, as oci.Injection has them.
	DeviceInjection string
	// Graphics gives containers the driver's libraries for OpenCL, OpenGL, Vulkan and similar too.
	Graphics bool
	// CDISpecDirs are the directories of CDI specs; a later one wins over an earlier one.
	CDISpecDirs []string

	// DeviceSplitCount, MemoryScaling and ContextMemoryMiB are how GPUs are shared, as
	// the agent's options of these names: containers a GPU, what may be granted as a
	// multiple of a GPU's memory, and what a CUDA context is charged with (-1: by the
	// model). Where the agent runs it says the first two.
	DeviceSplitCount int
	MemoryScaling    float64
	ContextMemoryMiB int

	// Devices are the GPUs, by UUID or index, that such containers may use; none: all.
	Devices []string
	// Maximum is the most that one container may have.
	Maximum Limit
	// Default is what a request that leaves something out gets. A container that asks
	// for nothing gets nothing.
	Default Slice
	// AllowWholeGPUs: who says no amount of memory gets the whole GPU, and
	// NVIDIA_VISIBLE_DEVICES alone is a request for whole GPUs.
	AllowWholeGPUs bool
	// AllowHighPriority: a container may ask for priority 0 by itself.
	AllowHighPriority bool
	// AllowControlSwitch: CUDA_DISABLE_CONTROL=true takes the limiter away. (The
	// container is booked like any other.)
	AllowControlSwitch bool
	// AnnotationsOnly: requests are read from annotations only. Variables can be an
	// image's; annotations are of who starts the container.
	AnnotationsOnly bool
	// Slices are requests by name.
	Slices map[string]Slice

	// Indices are NVML's indices by UUID ("0", and "0:1" of a MIG device). They are the
	// node's and not the file's: whoever knows the GPUs fills them in before Choose.
	// GPUs that aren't here can't be named by an index.
	Indices map[string]string
}

// Slice is a request that the operator has put a name to, or the default one.
type Slice struct {
	Amount
	// Devices are the GPUs; nothing said: the container may say, else one.
	Devices Devices
	// HighPriority needs no AllowHighPriority: the operator says it.
	HighPriority bool
}

// Limit is the most that one container may have. What is zero is not limited.
type Limit struct {
	// Memory is of each GPU.
	Memory Size
	// CorePercent is of each GPU. Where it is set, who asks for no share of compute
	// time, which would not be limited, has this one.
	CorePercent int
	// Devices is the number of GPUs.
	Devices int
}

// DefaultConfig is the config where there is no file.
func DefaultConfig() Config {
	return Config{
		StateDir:         "/run/gpuslice",
		LibraryDir:       "/var/lib/gpuslice/lib",
		NVMLLibrary:      "libnvidia-ml.so.1",
		Runtimes:         []string{"runc", "crun"},
		NvidiaRuntime:    "nvidia-container-runtime",
		LimiterMode:      "auto",
		CorePolicy:       "default",
		DeviceInjection:  "auto",
		CDISpecDirs:      []string{"/etc/cdi", "/var/run/cdi"},
		DeviceSplitCount: 10,
		MemoryScaling:    1,
		ContextMemoryMiB: -1,
	}
}

// NodePath is the agent's account of the GPUs.
func (c Config) NodePath() string {
	if c.NodeFile != "" {
		return c.NodeFile
	}
	return filepath.Join(c.StateDir, "node.json")
}
