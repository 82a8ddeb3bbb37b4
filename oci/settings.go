package oci

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/oci/native"
)

// Injection is how granted GPUs are made visible (--device-injection).
type Injection string

const (
	// InjectAuto is InjectCDI, or InjectEnvvar if a GPU has no CDI edits and the container has NVIDIA's runtime.
	InjectAuto Injection = "auto"
	// InjectCDI adds the edits of the node's CDI spec.
	InjectCDI Injection = "cdi"
	// InjectEnvvar lets NVIDIA's runtime inject, by NVIDIA_VISIBLE_DEVICES or mounts.
	InjectEnvvar Injection = "envvar"
	// injectNone is of Settings.Host.
	injectNone Injection = "none"
)

// CorePolicy is HAMi's GPU_CORE_UTILIZATION_POLICY.
type CorePolicy string

// When shares of compute time are enforced.
const (
	// CoreDefault: while another container uses the GPU.
	CoreDefault CorePolicy = "default"
	CoreForce   CorePolicy = "force"
	CoreDisable CorePolicy = "disable"
)

func (p CorePolicy) Known() bool { return p == CoreDefault || p == CoreForce || p == CoreDisable }

// Settings are the operator's settings of a node.
type Settings struct {
	// Injection: empty is auto.
	Injection Injection
	// Host: for a process of the host, which has its devices. Injection has no effect.
	Host bool
	// LibraryPath is the limiter's library, from InstallLibrary.
	LibraryPath string
	// PreloadPath is mounted as /etc/ld.so.preload, from InstallLibrary.
	PreloadPath string
	// LimiterMode: empty is preload.
	LimiterMode LimiterMode
	// Stubs are for every mode but preload.
	Stubs Stubs
	// MountCheck is from InstallMountCheck. A hook of each container calls it, and refuses other files at the
	// limiter's paths. Empty: the caller checks the image.
	MountCheck string
	// NvidiaHandlers are the RuntimeClass handlers with NVIDIA's runtime.
	NvidiaHandlers []string
	// DefaultRuntimeIsNvidia: the empty handler is one of them.
	DefaultRuntimeIsNvidia bool
	// NvidiaAdvice is for other handlers; empty: Kubernetes' advice.
	NvidiaAdvice string
	// Nodes adds device nodes with InjectEnvvar (--pass-device-specs).
	Nodes DeviceEdits
	// Channels are the device nodes of IMEX channels (HostIMEXChannels), for every container with a GPU.
	Channels []*cdispec.DeviceNode
	// Oversubscription is granted memory / GPU memory, by UUID; 0 and 1: none. The part beyond the GPU may be in host
	// memory (CUDA_OVERSUBSCRIBE).
	Oversubscription map[string]float64
	// Graphics adds the driver's libraries for OpenCL, OpenGL and Vulkan. The limiter can't see their use.
	Graphics bool
	// CorePolicy: empty is default.
	CorePolicy CorePolicy
	// ContextMiB is the expected memory of a CUDA context, by the GPU's UUID.
	ContextMiB map[string]int64
	// Memory is what limits containers' memory; empty is limiter.
	Memory MemoryEnforcement
	// RequireNative: with MemoryAuto too, a container that the driver can't limit is refused.
	RequireNative bool
	// Native is the hook that sets the driver's limits.
	Native native.Setup
	// NoNative is why the driver has no such limits; nil: it has.
	NoNative error
	// Unmeasured: an agent may not run on the node. Until one does, each process measures its own residue.
	Unmeasured bool
}

// Validate reports every invalid field.
func (s Settings) Validate() error {
	var errs []error
	if !slices.Contains([]Injection{InjectAuto, InjectCDI, InjectEnvvar}, s.injection()) {
		errs = append(errs, fmt.Errorf("unknown device injection %q: use auto, cdi or envvar", s.Injection))
	}
	if !s.corePolicy().Known() {
		errs = append(errs, fmt.Errorf("unknown core policy %q: use default, force or disable", s.CorePolicy))
	}
	errs = append(errs, checkHostPath("library", s.LibraryPath), checkHostPath("ld.so.preload", s.PreloadPath), s.checkMode(), s.checkMemory())
	if slices.Contains(s.NvidiaHandlers, "") {
		errs = append(errs, errors.New("an NVIDIA runtime handler is empty: set that the default runtime is NVIDIA's instead"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node settings: %w", err)
	}
	return nil
}

func (s Settings) oversubscribed(uuid string) bool { return s.Oversubscription[uuid] > 1 }

func (s Settings) injection() Injection { return cmp.Or(s.Injection, InjectAuto) }

func (s Settings) corePolicy() CorePolicy { return cmp.Or(s.CorePolicy, CoreDefault) }

func (s Settings) nvidiaRuntime(handler string) bool {
	return handler == "" && s.DefaultRuntimeIsNvidia || handler != "" && slices.Contains(s.NvidiaHandlers, handler)
}

// A runtime would search a relative mount source in the bundle.
func checkHostPath(what, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%s path is empty: install the library first (gpuslice-agent does at start)", what)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%s path %q is not an absolute, clean path", what, path)
	}
	return nil
}
