package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/limiter"
)

// LimiterMode is how the operator wants the limiter brought into containers
// (--limiter-mode).
type LimiterMode string

// The modes.
const (
	// LimiterPreload has it loaded by /etc/ld.so.preload, which glibc reads.
	LimiterPreload LimiterMode = "preload"
	// LimiterLibrary has it in front of the driver's libraries, at their place.
	LimiterLibrary LimiterMode = "library"
	// LimiterAuto takes both where both can be, and refuses where none holds.
	LimiterAuto LimiterMode = "auto"
)

// LimiterModes are all of them.
var LimiterModes = []LimiterMode{LimiterPreload, LimiterLibrary, LimiterAuto}

// Enforcement is how one container is held to its limits. It is what a claim's Mode,
// the container's annotation and `gpuslice status` say.
type Enforcement string

// The ways.
const (
	EnforcePreload Enforcement = "preload"
	EnforceLibrary Enforcement = "library"
	EnforceBoth    Enforcement = "preload+library"
	// EnforceNone is a container whose user switched the limiter off, and may.
	EnforceNone Enforcement = "none"
)

func (e Enforcement) preloads() bool { return e == EnforcePreload || e == EnforceBoth }
func (e Enforcement) stubs() bool    { return e == EnforceLibrary || e == EnforceBoth }

// enforcement is the way of a mode that holds a container, whose variables don't lead
// past it.
func enforcement(mode LimiterMode, c Container, noStub error) (Enforcement, error) {
	way, err := enforceable(mode, c, noStub)
	if err != nil {
		return "", err
	}
	if err := CheckLoading(way, c); err != nil {
		return "", fmt.Errorf("limiter mode is %s: %w", mode, err)
	}
	return way, nil
}

// enforceable decides. noStub is why the fronts can't be put before the driver, nil
// where they can. It never answers with less than the mode says: what the container
// can't be held by is an error.
func enforceable(mode LimiterMode, c Container, noStub error) (Enforcement, error) {
	if c.NoLimiter {
		return EnforceNone, nil
	}
	noPreload := c.Rootfs.ignoresPreload()
	switch mode {
	case LimiterPreload:
		if noPreload != nil {
			return "", fmt.Errorf("limiter mode is %s: %w: set the node's limiter mode to auto or library", mode, noPreload)
		}
		return EnforcePreload, nil
	case LimiterLibrary:
		if noStub != nil {
			return "", fmt.Errorf("limiter mode is %s: %w", mode, noStub)
		}
		return EnforceLibrary, nil
	}
	switch {
	case noStub != nil && noPreload != nil:
		return "", fmt.Errorf("limiter mode is %s, and neither way holds this container: %w", mode, errors.Join(noPreload, noStub))
	case noStub != nil:
		return EnforcePreload, nil
	default:
		// Also in an image whose loader doesn't read the file, or without any: a volume or
		// a later download can bring glibc's, and where nobody reads it, it does nothing.
		return EnforceBoth, nil
	}
}

// EnforcementOf is how a container that has a GPU is held, by what it has mounted:
// settings can have changed since it was made.
func EnforcementOf(mounts []rspec.Mount, s Settings) Enforcement {
	from := map[string]string{}
	for _, m := range mounts {
		from[cleanDestination(m.Destination)] = m.Source
	}
	preload := from[limiter.ContainerPreloadPath]
	ours := preload != "" && (preload == s.PreloadPath || preload == mergedPreload(filepath.Dir(from[limiterDir])))
	stub := from[driverPath(drivers[0])] != ""
	switch {
	case ours && stub:
		return EnforceBoth
	case ours:
		return EnforcePreload
	case stub:
		return EnforceLibrary
	}
	return EnforceNone
}

// checkMode reports a mode that isn't one, or that lacks its files.
func (s Settings) checkMode() error {
	if !slices.Contains(LimiterModes, s.limiterMode()) {
		return fmt.Errorf("limiter mode %q is not known: use preload, library or auto", s.LimiterMode)
	}
	if s.limiterMode() == LimiterPreload {
		return nil
	}
	return errors.Join(checkHostPath("CUDA front", s.Stubs.CUDA), checkHostPath("NVML front", s.Stubs.NVML))
}

// limiterMode is the mode, with the empty value read.
func (s Settings) limiterMode() LimiterMode {
	if s.LimiterMode == "" {
		return LimiterPreload
	}
	return s.LimiterMode
}
