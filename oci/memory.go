package oci

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/native"
)

// MemoryEnforcement is what limits the memory of containers (--memory-enforcement).
type MemoryEnforcement string

const (
	MemoryLimiter MemoryEnforcement = "limiter"
	// MemoryNative: the driver, for control groups. The limiter is not loaded.
	MemoryNative MemoryEnforcement = "native"
	// MemoryBoth: the driver, and the limiter, which enforces compute shares too.
	MemoryBoth MemoryEnforcement = "native+limiter"
	// MemoryAuto: both where the driver can, else the limiter.
	MemoryAuto MemoryEnforcement = "auto"
)

var MemoryEnforcements = []MemoryEnforcement{MemoryLimiter, MemoryNative, MemoryBoth, MemoryAuto}

// By these NVIDIA's toolkit, in a hook of its own, sets the driver's limits to what the container asks for.
var toolkitLimits = []string{"NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"}

func (s Settings) memory() MemoryEnforcement { return cmp.Or(s.Memory, MemoryLimiter) }

func (s Settings) checkMemory() error {
	switch {
	case !slices.Contains(MemoryEnforcements, s.memory()):
		return fmt.Errorf("unknown memory enforcement %q: use limiter, native, native+limiter or auto", s.Memory)
	case s.RequireNative && s.memory() == MemoryLimiter:
		return errors.New("the driver's memory limits are required, and memory enforcement is limiter: set it to native, native+limiter or auto")
	}
	return nil
}

// memoryOf returns what limits a container's memory: with MemoryAuto it is decided here. An error refuses the container.
func (s Settings) memoryOf(shares []grant.Share, c Container) (MemoryEnforcement, error) {
	mode := s.memory()
	if mode == MemoryLimiter || c.NoLimiter {
		return MemoryLimiter, nil
	}
	for _, name := range toolkitLimits {
		if _, set := c.getenv(name); set {
			return "", fmt.Errorf("its environment sets %s, by which NVIDIA's toolkit would change its limit: remove the variable", name)
		}
	}
	why := s.notNative(shares, c)
	switch {
	case why == nil && mode == MemoryAuto:
		return MemoryBoth, nil
	case why == nil && mode == MemoryNative && slices.ContainsFunc(shares, limitsTime):
		why = errors.New("it has a compute share, which only the limiter enforces: set memory enforcement to native+limiter, or request no compute share")
	case why == nil:
		return mode, nil
	case mode == MemoryAuto && !s.RequireNative && !errors.Is(why, native.ErrNotProbed):
		return MemoryLimiter, nil
	}
	return "", fmt.Errorf("memory enforcement is %s: %w", mode, why)
}

func limitsTime(share grant.Share) bool { return share.CorePercent > 0 && share.CorePercent < 100 }

// notNative returns why the driver can't limit a container.
func (s Settings) notNative(shares []grant.Share, c Container) error {
	switch {
	case s.NoNative != nil:
		return s.NoNative
	case s.Native.Hook == "":
		return errors.New("the hook that sets the driver's memory limits is not installed")
	case s.Host:
		return errors.New("a process of the host has no control group of its own")
	case c.Privileged:
		return errors.New("it is privileged: its processes could leave the control group with the limit")
	case c.InCommon && s.memory() == MemoryAuto: // else the hook refuses the second container
		return errors.New("it has a ResourceClaim, which other containers can have too: the driver would give each the whole share")
	}
	for _, share := range shares {
		if grant.IsMIG(share.UUID) {
			return fmt.Errorf("%s is a MIG device, for which the driver has no memory limits", share.UUID)
		}
		if s.oversubscribed(share.UUID) {
			return fmt.Errorf("GPU %s is oversubscribed, and the driver does not count the memory that is in the host's", share.UUID)
		}
	}
	return nil
}

// nativeHook is the last hook: what NVIDIA's set before is overwritten.
func (s Settings) nativeHook(how Enforcement) []*cdispec.Hook {
	if !how.Native() {
		return nil
	}
	return []*cdispec.Hook{s.Native.Edit()}
}
