package api

// Default paths on the host.
const (
	// StateDir has the agent's state: the ledger, and the containers' limits and usage files.
	StateDir = "/run/gpuslice"
	// LibraryDir has the installed limiter.
	LibraryDir = "/var/lib/gpuslice/lib"
	// Library is the limiter to install.
	Library = "/usr/lib/gpuslice/libvgpu.so"
	// RuntimeConfig is the configuration of gpuslice-runtime.
	RuntimeConfig = "/etc/gpuslice/runtime.yaml"

	NRISocket          = "/var/run/nri/nri.sock"
	KubeletDir         = "/var/lib/kubelet"
	DevicePluginDir    = KubeletDir + "/device-plugins"
	PodResourcesSocket = KubeletDir + "/pod-resources/kubelet.sock"
)

// CDISpecDirs returns the directories of CDI specs; a later one overrides an earlier one.
func CDISpecDirs() []string { return []string{"/etc/cdi", CDIDynamicDir} }

// CDIDynamicDir is for specs that a reboot removes.
const CDIDynamicDir = "/var/run/cdi"

const (
	ContainerDir         = "/.gpuslice"
	ContainerLibraryPath = ContainerDir + "/libvgpu.so"
	// ContainerPreloadedPath is a link to the library, named by /etc/ld.so.preload. The runtime of
	// AddressSanitizer ends a program if the name of its first library contains neither "libasan.so" nor
	// "libclang_rt.asan".
	ContainerPreloadedPath = ContainerDir + "/libvgpu-before-libasan.so"
	ContainerLimitsPath    = ContainerDir + "/limits"
	ContainerUsagePath     = ContainerDir + "/usage"
	ContainerTurnsDir      = ContainerDir + "/turns"
	ContainerPreloadPath   = "/etc/ld.so.preload"
)
