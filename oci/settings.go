package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Injection is how the granted GPUs are made visible in a container.
type Injection string

// The values of --device-injection.
const (
	// InjectAuto is InjectCDI if the registry has every granted GPU, else InjectEnvvar if the container has NVIDIA's
	// runtime.
	InjectAuto Injection = "auto"
	// InjectCDI adds the edits of the node's CDI spec.
	InjectCDI Injection = "cdi"
	// InjectEnvvar lets NVIDIA's container runtime inject: it reads NVIDIA_VISIBLE_DEVICES, or volume mounts with the
	// same meaning.
	InjectEnvvar Injection = "envvar"
)

// CorePolicy is HAMi's GPU_CORE_UTILIZATION_POLICY: when shares of compute time are enforced.
type CorePolicy string

// The policies, with HAMi's meanings.
const (
	// CoreDefault: while another container uses the GPU.
	CoreDefault CorePolicy = "default"
	// CoreForce: always.
	CoreForce CorePolicy = "force"
	// CoreDisable: never.
	CoreDisable CorePolicy = "disable"
)

// Known reports whether p is one of the policies.
func (p CorePolicy) Known() bool { return p == CoreDefault || p == CoreForce || p == CoreDisable }

// Settings are the operator's settings of a node.
type Settings struct {
	// Injection: empty is auto.
	Injection Injection
	// LibraryPath is the path on the host that InstallLibrary returns.
	LibraryPath string
	// PreloadPath is the host's file that is mounted as /etc/ld.so.preload.
	PreloadPath string
	// LimiterMode: empty is preload.
	LimiterMode LimiterMode
	// Stubs are needed in every mode but preload.
	Stubs Stubs
	// MountCheck is the program that InstallMountCheck installs. A hook of each container calls it, and it refuses a
	// container with other files at the paths of the limiter's files. Empty: no hook, for callers that check the
	// image themselves.
	MountCheck string
	// NvidiaHandlers are the RuntimeClass handlers with NVIDIA's container runtime, such as "nvidia".
	NvidiaHandlers []string
	// DefaultRuntimeIsNvidia: the empty handler is one of them.
	DefaultRuntimeIsNvidia bool
	// NvidiaAdvice is what to do about another handler. Empty: the advice for Kubernetes.
	NvidiaAdvice string
	// Nodes adds device nodes to containers with InjectEnvvar (--pass-device-specs): see [NodeFiles].
	Nodes DeviceEdits
	// Oversubscription is, by UUID, the granted memory divided by the GPU's memory: 1.5 is half as much again; 0 and
	// 1 are none. The rest of a container's memory may be in host memory (CUDA_OVERSUBSCRIBE).
	Oversubscription map[string]float64
	// Graphics adds the driver's libraries for OpenCL, OpenGL, Vulkan and similar. The limiter can't see their use.
	Graphics bool
	// CorePolicy: empty is default.
	CorePolicy CorePolicy
	// ContextMiB is the expected memory of a CUDA context by the GPU's UUID, in MiB.
	ContextMiB map[string]int64
}

// Validate reports every invalid field.
func (s Settings) Validate() error {
	var errs []error
	switch s.Injection {
	case "", InjectAuto, InjectCDI, InjectEnvvar:
	default:
		errs = append(errs, fmt.Errorf("device injection %q is not known: use auto, cdi or envvar", s.Injection))
	}
	if s.CorePolicy != "" && !s.CorePolicy.Known() {
		errs = append(errs, fmt.Errorf("core policy %q is not known: use default, force or disable", s.CorePolicy))
	}
	errs = append(errs,
		checkHostPath("library", s.LibraryPath),
		checkHostPath("ld.so.preload", s.PreloadPath),
		s.checkMode(),
		checkHandlers(s.NvidiaHandlers),
	)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node settings: %w", err)
	}
	return nil
}

func (s Settings) oversubscribed(uuid string) bool { return s.Oversubscription[uuid] > 1 }

func (s Settings) injection() Injection {
	if s.Injection == "" {
		return InjectAuto
	}
	return s.Injection
}

func (s Settings) corePolicy() CorePolicy {
	if s.CorePolicy == "" {
		return CoreDefault
	}
	return s.CorePolicy
}

func (s Settings) nvidiaRuntime(handler string) bool {
	if handler == "" {
		return s.DefaultRuntimeIsNvidia
	}
	return slices.Contains(s.NvidiaHandlers, handler)
}

// checkHostPath refuses a path that is not absolute and clean: a runtime would search a relative mount source in the
// bundle.
func checkHostPath(what, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%s path is empty: install the library first (gpuslice-agent does at start)", what)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%s path %q is not an absolute, clean path", what, path)
	}
	return nil
}

// checkHandlers refuses the empty handler, which has its own field.
func checkHandlers(handlers []string) error {
	if slices.Contains(handlers, "") {
		return errors.New("an NVIDIA runtime handler is empty: set that the default runtime is NVIDIA's instead")
	}
	return nil
}
