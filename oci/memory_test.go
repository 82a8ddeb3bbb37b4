package oci

import (
	"errors"
	"slices"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/native"
)

func nativeSettings(mode MemoryEnforcement) Settings {
	s := testSettings()
	s.Memory, s.Native = mode, native.Setup{Hook: "/lib/gpuslice-runtime-0", StateDir: "/run/gpuslice"}
	return s
}

// Whatever keeps the driver from limiting a container refuses it, except with auto, which takes the limiter.
func TestMemoryEnforcement(t *testing.T) {
	share := one(1000, 10)
	unlimited := one(1000, 0)
	for name, tt := range map[string]struct {
		change func(*Settings, *Container, *[]grant.Share)
		text   string
	}{
		"probe failed":   {func(s *Settings, _ *Container, _ *[]grant.Share) { s.NoNative = errors.New("driver 580") }, "driver 580"},
		"no hook":        {func(s *Settings, _ *Container, _ *[]grant.Share) { s.Native.Hook = "" }, "not installed"},
		"host's process": {func(s *Settings, _ *Container, _ *[]grant.Share) { s.Host = true }, "process of the host"},
		"privileged":     {func(_ *Settings, c *Container, _ *[]grant.Share) { c.Privileged = true }, "privileged"},
		"MIG device": {func(_ *Settings, _ *Container, shares *[]grant.Share) {
			*shares = []grant.Share{{UUID: "MIG-" + (*shares)[0].UUID[4:], MemoryMiB: 5}}
		}, "MIG device"},
		"oversubscribed": {func(s *Settings, _ *Container, shares *[]grant.Share) {
			s.Oversubscription = map[string]float64{(*shares)[0].UUID: 1.5}
		}, "oversubscribed"},
	} {
		for _, mode := range MemoryEnforcements {
			for _, require1 := range []bool{false, true} {
				s, c, shares := nativeSettings(mode), Container{}, slices.Clone(unlimited)
				s.RequireNative = require1
				tt.change(&s, &c, &shares)
				got, err := s.memoryOf(shares, c)
				switch {
				case mode == MemoryLimiter, mode == MemoryAuto && !require1:
					require.NoError(t, err, name)
					assert.Equal(t, MemoryLimiter, got, name)
				default:
					require.ErrorContains(t, err, tt.text, "%s %s", name, mode)
				}
			}
		}
	}
	for mode, want := range map[MemoryEnforcement]MemoryEnforcement{
		"": MemoryLimiter, MemoryLimiter: MemoryLimiter, MemoryNative: MemoryNative, MemoryBoth: MemoryBoth, MemoryAuto: MemoryBoth,
	} {
		got, err := nativeSettings(mode).memoryOf(unlimited, Container{})
		require.NoError(t, err)
		assert.Equal(t, want, got)
		got, err = nativeSettings(mode).memoryOf(unlimited, Container{NoLimiter: true})
		require.NoError(t, err)
		assert.Equal(t, MemoryLimiter, got, "with the operator's permission it has no limits at all")
	}
	_, err := nativeSettings(MemoryNative).memoryOf(share, Container{})
	require.ErrorContains(t, err, "compute share")
	got, err := nativeSettings(MemoryBoth).memoryOf(share, Container{})
	require.NoError(t, err)
	assert.Equal(t, MemoryBoth, got)
	for _, mode := range []MemoryEnforcement{MemoryNative, MemoryBoth, MemoryAuto} {
		for _, name := range toolkitLimits {
			_, err := nativeSettings(mode).memoryOf(unlimited, Container{Env: []string{name + "=999999"}})
			require.ErrorContains(t, err, name)
		}
	}
	s := nativeSettings(MemoryAuto)
	s.NoNative = native.ErrNotProbed
	_, err = s.memoryOf(unlimited, Container{})
	require.ErrorIs(t, err, native.ErrNotProbed, "not only the limiter, because the agent has just started")
	got, err = nativeSettings(MemoryAuto).memoryOf(unlimited, Container{InCommon: true})
	require.NoError(t, err)
	assert.Equal(t, MemoryLimiter, got)
}

func TestMemoryEnforcementSettings(t *testing.T) {
	s := nativeSettings("driver")
	require.ErrorContains(t, s.Validate(), `unknown memory enforcement "driver"`)
	s = nativeSettings(MemoryLimiter)
	s.RequireNative = true
	require.ErrorContains(t, s.Validate(), "required")
	s.Memory = MemoryAuto
	require.NoError(t, s.Validate())
}

// The hook comes after NVIDIA's, is recognised again, and the limiter is loaded or not.
func TestNativeEdits(t *testing.T) {
	for mode, want := range map[MemoryEnforcement]Enforcement{
		MemoryNative: EnforceNative, MemoryBoth: "native+preload", MemoryLimiter: EnforcePreload,
	} {
		s := nativeSettings(mode)
		spec := testSpec(t, "containerd")
		result, err := Edits(one(1000, 0), s, factsOf(spec, ""), testRegistry(t))
		require.NoError(t, err)
		assert.Equal(t, want, result.Enforcement)
		require.NoError(t, Apply(spec, result.Edits))
		var hooks []rspec.Hook
		if spec.Hooks != nil {
			hooks = spec.Hooks.CreateRuntime
		}
		assert.Equal(t, want, EnforcementOf(spec.Mounts, hooks, s))
		assert.Equal(t, want.Native(), native.HasHook(hooks))
		if want.Native() {
			assert.True(t, native.HasHook(hooks[len(hooks)-1:]), "the last")
		}
		preloaded := slices.ContainsFunc(spec.Mounts, func(m rspec.Mount) bool { return m.Destination == "/etc/ld.so.preload" })
		assert.Equal(t, want != EnforceNone && want != EnforceNative, preloaded)
		assert.Contains(t, Enforcements, result.Enforcement)
	}
}
