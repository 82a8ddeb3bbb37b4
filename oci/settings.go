package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Injection says how the granted GPUs are made visible in a container.
type Injection string

// The ways to make GPUs visible (--device-injection).
const (
	// InjectAuto takes InjectCDI where the registry has every granted GPU, and
	// InjectEnvvar where it doesn't and the container runs with NVIDIA's runtime.
	InjectAuto Injection = "auto"
	// InjectCDI puts the edits of the node's CDI spec into the container.
	InjectCDI Injection = "cdi"
	// InjectEnvvar leaves it to NVIDIA's container runtime, which reads
	// NVIDIA_VISIBLE_DEVICES, or volume mounts with the same meaning, after us.
	InjectEnvvar Injection = "envvar"
)

// CorePolicy is HAMi's GPU_CORE_UTILIZATION_POLICY: when a share of compute time
// is enforced.
type CorePolicy string

// The policies, with HAMi's meanings.
const (
	// CoreDefault enforces a share when somebody else wants the GPU.
	CoreDefault CorePolicy = "default"
	// CoreForce enforces it always.
	CoreForce CorePolicy = "force"
	// CoreDisable doesn't enforce it.
	CoreDisable CorePolicy = "disable"
)

// Known says whether it is one of them.
func (p CorePolicy) Known() bool { return p == CoreDefault || p == CoreForce || p == CoreDisable }

// Settings are a node's: the operator's, never a user's.
type Settings struct {
	// Injection is how GPUs are made visible; empty reads as auto.
	Injection Injection
	// LibraryPath is the host's content-addressed library, as InstallLibrary
	// returns it.
	LibraryPath string
	// PreloadPath is the host's file that is mounted as /etc/ld.so.preload.
	PreloadPath string
	// LimiterMode is how the limiter is brought into containers; empty reads as preload.
	LimiterMode LimiterMode
	// Stubs are the host's libraries for every mode but preload.
	Stubs Stubs
	// MountCheck is the path on the host of the program that InstallMountCheck installs. A hook
	// of each container calls it: it refuses a container with something else at the paths of
	// the limiter's files. Empty: no hook, for callers that check the image themselves.
	MountCheck string
	// NvidiaHandlers are the runtime handlers (RuntimeClass handlers) that run
	// NVIDIA's container runtime, such as "nvidia".
	NvidiaHandlers []string
	// DefaultRuntimeIsNvidia says that the empty handler is one of those.
	DefaultRuntimeIsNvidia bool
	// NvidiaAdvice says what to do about a handler that isn't; empty is what to do in
	// Kubernetes.
	NvidiaAdvice string
	// Nodes, where it is set, resolves GPUs to their device nodes, for containers
	// whose GPUs NVIDIA's runtime injects (--pass-device-specs): see [NodeFiles].
	Nodes DeviceEdits
	// Oversubscription is, by UUID, how much more memory is granted of a GPU than it
	// has: 1.5 is half as much again, 1 or nothing none. Of a container's memory its part
	// lies on the GPU, and what is beyond that may spill to the host's
	// (CUDA_OVERSUBSCRIBE).
	Oversubscription map[string]float64
	// Graphics gives containers the driver's libraries for OpenCL, OpenGL, Vulkan and similar
	// too. The limiter can't see their use.
	Graphics bool
	// CorePolicy is when compute shares are enforced; empty reads as default.
	CorePolicy CorePolicy
	// ContextMiB is the memory, in MiB, that a CUDA context of a GPU is expected
	// to take, by UUID; a missing one is unknown.
	ContextMiB map[string]int64
}

// Validate reports every field that can't be worked with.
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

// oversubscribed says whether more of a GPU's memory is granted than it has.
func (s Settings) oversubscribed(uuid string) bool { return s.Oversubscription[uuid] > 1 }

// injection is the chosen way, with the empty value read.
func (s Settings) injection() Injection {
	if s.Injection == "" {
		return InjectAuto
	}
	return s.Injection
}

// corePolicy is the chosen policy, with the empty value read.
func (s Settings) corePolicy() CorePolicy {
	if s.CorePolicy == "" {
		return CoreDefault
	}
	return s.CorePolicy
}

// nvidiaRuntime says whether a runtime handler runs NVIDIA's runtime.
func (s Settings) nvidiaRuntime(handler string) bool {
	if handler == "" {
		return s.DefaultRuntimeIsNvidia
	}
	return slices.Contains(s.NvidiaHandlers, handler)
}

// checkHostPath wants an absolute, clean path of the host: a mount source that
// is relative would be searched in the bundle.
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
		return errors.New("an nvidia runtime handler is empty: say that the default runtime is nvidia instead")
	}
	return nil
}
