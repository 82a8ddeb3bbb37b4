package request

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
)

// Config is the operator's config. install/runtime.schema.json describes the keys.
type Config struct {
	// Path is where the config was read from, or would have been.
	Path string `yaml:"-"`
	// Indices are NVML's by UUID ("0", and "0:1" for a MIG device). The caller sets them before
	// Choose; other GPUs can't be requested by index.
	Indices map[string]string `yaml:"-"`
	// Cordoned are GPUs and MIG devices that get no new container (ledger.Cordoned). The caller sets them too.
	Cordoned []string `yaml:"-"`

	StateDir         string   `yaml:"stateDir"`
	LibraryDir       string   `yaml:"libraryDir"`
	NodeFile         string   `yaml:"nodeFile"` // see NodePath
	NVMLLibrary      string   `yaml:"nvmlLibrary"`
	Runtimes         []string `yaml:"runtimes"`
	NvidiaRuntime    string   `yaml:"nvidiaRuntime"`
	ExemptNamespaces []string `yaml:"exemptNamespaces"`

	LimiterMode       string   `yaml:"limiterMode"`       // an oci.LimiterMode
	MemoryEnforcement string   `yaml:"memoryEnforcement"` // an oci.MemoryEnforcement
	RequireNative     bool     `yaml:"requireNative"`
	CorePolicy        string   `yaml:"corePolicy"`      // an oci.CorePolicy
	DeviceInjection   string   `yaml:"deviceInjection"` // an oci.Injection
	Graphics          bool     `yaml:"graphics"`
	CDISpecDirs       []string `yaml:"cdiSpecDirs"`

	DeviceSplitCount int     `yaml:"deviceSplitCount"`
	MemoryScaling    float64 `yaml:"memoryScaling"`
	ContextMemoryMiB int     `yaml:"contextMemoryMiB"`

	Devices []string `yaml:"devices"`
	Maximum Limit    `yaml:"maximum"`
	Default Slice    `yaml:"default"`

	AllowWholeGPUs    bool `yaml:"allowWholeGPUs"`
	AllowHighPriority bool `yaml:"allowHighPriority"`
	// AllowControlSwitch removes the limiter. Shares are reserved all the same.
	AllowControlSwitch bool             `yaml:"allowControlSwitch"`
	AnnotationsOnly    bool             `yaml:"annotationsOnly"`
	Slices             map[string]Slice `yaml:"slices"`
}

// Slice is a request that the operator defines.
type Slice struct {
	Amount `yaml:",inline"`
	// Devices: if zero, the container may choose.
	Devices Devices `yaml:"devices"`
	// HighPriority does not need AllowHighPriority.
	HighPriority HighPriority `yaml:"priority"`
}

// Limit is the maximum of one container. Zero is no limit.
type Limit struct {
	// A request without compute time gets CorePercent.
	Memory      Size  `yaml:"memory"`
	CorePercent Cores `yaml:"cores"`
	Devices     int   `yaml:"devices"`
}

// DefaultConfig returns the config that is in force without a file.
func DefaultConfig() Config {
	return Config{
		StateDir:          api.StateDir,
		LibraryDir:        api.LibraryDir,
		NVMLLibrary:       "libnvidia-ml.so.1",
		Runtimes:          []string{"runc", "crun"},
		NvidiaRuntime:     "nvidia-container-runtime",
		LimiterMode:       "auto",
		MemoryEnforcement: "limiter",
		CorePolicy:        "default",
		DeviceInjection:   "auto",
		CDISpecDirs:       api.CDISpecDirs(),
		DeviceSplitCount:  10,
		MemoryScaling:     1,
		ContextMemoryMiB:  -1,
	}
}

// NodePath returns the path of the agent's list of the GPUs.
func (c Config) NodePath() string {
	if c.NodeFile != "" {
		return c.NodeFile
	}
	return filepath.Join(c.StateDir, api.NodeFileName)
}
