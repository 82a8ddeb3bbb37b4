package oci

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/native"
)

// LimiterMode is how containers load the limiter (--limiter-mode).
type LimiterMode string

const (
	// LimiterPreload: by /etc/ld.so.preload, which glibc reads.
	LimiterPreload LimiterMode = "preload"
	// LimiterLibrary: by stub libraries in place of the driver's.
	LimiterLibrary LimiterMode = "library"
	// LimiterAuto: by both if possible, else by one.
	LimiterAuto LimiterMode = "auto"
)

var LimiterModes = []LimiterMode{LimiterPreload, LimiterLibrary, LimiterAuto}

// Enforcement is how a container's limits are enforced, in its claim, its annotation and `gpuslice status`.
type Enforcement string

const (
	EnforcePreload Enforcement = "preload"
	EnforceLibrary Enforcement = "library"
	EnforceBoth    Enforcement = "preload+library"
	// EnforceNone: Container.NoLimiter.
	EnforceNone Enforcement = "none"
	// EnforceNative: by the driver, without the limiter. With it, nativeAnd precedes how that is loaded.
	EnforceNative Enforcement = "native"
)

const nativeAnd = EnforceNative + "+"

// Enforcements are all, the weakest first.
var Enforcements = []Enforcement{
	EnforceNone, EnforcePreload, EnforceLibrary, EnforceBoth,
	EnforceNative, nativeAnd + EnforcePreload, nativeAnd + EnforceLibrary, nativeAnd + EnforceBoth,
}

// Native reports whether the driver enforces the limits of memory.
func (e Enforcement) Native() bool {
	return e == EnforceNative || strings.HasPrefix(string(e), string(nativeAnd))
}

// Isolation is that of a part of a GPU.
func (e Enforcement) Isolation() grant.Isolation {
	switch {
	case e.Native():
		return grant.IsolationDriver
	case e == EnforceNone:
		return grant.IsolationAny
	}
	return grant.IsolationLimiter
}

func (e Enforcement) limiter() Enforcement {
	return Enforcement(strings.TrimPrefix(string(e), string(nativeAnd)))
}
func (e Enforcement) preloads() bool {
	return e.limiter() == EnforcePreload || e.limiter() == EnforceBoth
}
func (e Enforcement) stubs() bool { return e.limiter() == EnforceLibrary || e.limiter() == EnforceBoth }

func (s Settings) enforcement(shares []grant.Share, c Container, noStub error) (Enforcement, error) {
	memory, err := s.memoryOf(shares, c)
	if err != nil || memory == MemoryNative {
		return EnforceNative, err
	}
	how, err := enforcement(s.limiterMode(), c, noStub)
	if memory == MemoryBoth {
		how = nativeAnd + how
	}
	return how, err
}

// noStub is why stub libraries can't be used.
func enforcement(mode LimiterMode, c Container, noStub error) (Enforcement, error) {
	how, err := enforceable(mode, c, noStub)
	if err == nil {
		err = CheckLoading(how, c)
	}
	if err != nil {
		return "", fmt.Errorf("limiter mode is %s: %w", mode, err)
	}
	return how, nil
}

func enforceable(mode LimiterMode, c Container, noStub error) (Enforcement, error) {
	if c.NoLimiter {
		return EnforceNone, nil
	}
	noPreload := c.Rootfs.ignoresPreload()
	switch {
	case mode == LimiterPreload && noPreload != nil:
		return "", fmt.Errorf("%w: set the node's limiter mode to auto or library", noPreload)
	case mode == LimiterPreload:
		return EnforcePreload, nil
	case mode == LimiterLibrary && noStub != nil:
		return "", noStub
	case mode == LimiterLibrary:
		return EnforceLibrary, nil
	case noStub != nil && noPreload != nil:
		return "", fmt.Errorf("neither way limits this container: %w", errors.Join(noPreload, noStub))
	case noStub != nil:
		return EnforcePreload, nil
	}
	// Also without glibc's loader: a volume or a download can bring it.
	return EnforceBoth, nil
}

// EnforcementOf returns how a running container's limits are enforced. The settings can have changed since its
// creation.
func EnforcementOf(mounts []rspec.Mount, createRuntime []rspec.Hook, s Settings) Enforcement {
	how := loadedBy(mounts, s)
	switch {
	case !native.HasHook(createRuntime):
		return how
	case how == EnforceNone:
		return EnforceNative
	}
	return nativeAnd + how
}

func loadedBy(mounts []rspec.Mount, s Settings) Enforcement {
	from := map[string]string{}
	for _, m := range mounts {
		from[cleanDestination(m.Destination)] = m.Source
	}
	preload := from[api.ContainerPreloadPath]
	preloads := preload != "" && (preload == s.PreloadPath || preload == mergedPreload(filepath.Dir(from[limiterDir])))
	stub := from[driverPath(drivers[0])] != ""
	switch {
	case preloads && stub:
		return EnforceBoth
	case preloads:
		return EnforcePreload
	case stub:
		return EnforceLibrary
	}
	return EnforceNone
}

func (s Settings) checkMode() error {
	if !slices.Contains(LimiterModes, s.limiterMode()) {
		return fmt.Errorf("unknown limiter mode %q: use preload, library or auto", s.LimiterMode)
	}
	if s.limiterMode() == LimiterPreload {
		return nil
	}
	return errors.Join(checkHostPath("CUDA stub library", s.Stubs.CUDA), checkHostPath("NVML stub library", s.Stubs.NVML))
}

func (s Settings) limiterMode() LimiterMode { return cmp.Or(s.LimiterMode, LimiterPreload) }
