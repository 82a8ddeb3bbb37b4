package oci

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// Result is what a container with a grant gets.
type Result struct {
	Edits       *cdispec.ContainerEdits
	Injection   Injection
	Enforcement Enforcement
	Replaced    Replaced
}

// Replaced lists what the edits replace in a container.
type Replaced struct {
	// Env are names of variables with other values in the container.
	Env []string
	// Mounts are destinations as the container spells them. Remove them before you add the edits.
	Mounts []string
}

// Edits returns what a container with these shares gets. It is a pure function. An error means that the container
// must not be created.
func Edits(shares []grant.Share, s Settings, c Container, devices DeviceEdits) (Result, error) {
	if err := cmp.Or(checkShares(shares), s.Validate(), c.checkDir(), checkLimitNames(c.Env)); err != nil {
		return Result{}, err
	}
	way, visible, err := injectDevices(uuidsOf(shares), s, c, devices)
	if err != nil {
		return Result{}, err
	}
	if way != injectNone {
		visible.DeviceNodes = append(visible.DeviceNodes, s.Channels...)
	}
	if !s.Graphics {
		withoutGraphics(visible)
	}
	if err := checkUngranted(uuidsOf(shares), c, visible); err != nil {
		return Result{}, err
	}

	how, err := s.enforcement(shares, c, checkStubs(visible, way))
	if err != nil {
		return Result{}, err
	}
	edits, err := compose(visible, s.Stubs, how, &cdispec.ContainerEdits{
		Env:    environment(shares, s, c, way),
		Mounts: append(limiterMounts(s, c, how), turnMounts(shares, c)...),
		Hooks:  append(mountCheck(s.MountCheck), s.nativeHook(how)...),
	})
	if err != nil {
		return Result{}, err
	}
	replaced := Replaced{Env: replacedEnv(c.Env, edits.Env), Mounts: replacedMounts(c.Mounts, edits)}
	return Result{Edits: edits, Injection: way, Enforcement: how, Replaced: replaced}, nil
}

// MountCheckCommand is the hook's command of gpuslice-runtime.
const MountCheckCommand = "check-mounts"

const mountCheckSeconds = 10

// mountCheck returns a hook that checks the mounts before the program runs: links in the image
// take effect only when the runtime mounts.
func mountCheck(program string) []*cdispec.Hook {
	if program == "" {
		return nil
	}
	timeout := mountCheckSeconds
	return []*cdispec.Hook{{
		HookName: "createRuntime", Path: program, Args: []string{path.Base(program), MountCheckCommand},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Timeout: &timeout,
	}}
}

// compose puts the limiter's edits over the GPUs'. It changes its arguments.
func compose(visible *cdispec.ContainerEdits, stubs Stubs, how Enforcement, limits *cdispec.ContainerEdits) (*cdispec.ContainerEdits, error) {
	for _, m := range visible.Mounts {
		if OwnedDestination(m.ContainerPath) {
			return nil, fmt.Errorf("the CDI spec mounts %s, the path of the limiter's files: remove that mount from the spec", m.ContainerPath)
		}
	}
	if how.stubs() {
		limits.Mounts = append(limits.Mounts, mountStubs(visible, stubs)...)
	}
	if how.limiter() == EnforceLibrary {
		withoutCompat(visible)
	}
	edits := merge(visible, limits)
	if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
		return nil, fmt.Errorf("the container's edits are not valid CDI: %w", err)
	}
	return edits, nil
}

func checkShares(shares []grant.Share) error {
	if len(shares) > limiter.MaxDevices {
		return fmt.Errorf("the grant has %d GPUs, and a container can be limited on %d at most", len(shares), limiter.MaxDevices)
	}
	return grant.ValidateShares(shares)
}

func replacedEnv(env, edits []string) []string {
	set := byName(edits)
	var names []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if entry, is := set[name]; ok && is && entry != e {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// UnsafeDuplicates returns variables of the edits that a container sets twice, with another value:
// containerd's NRI (v0.12, generate.AdjustEnv) replaces only the first. Refuse the container if you can't
// rewrite its whole environment.
func UnsafeDuplicates(env []string, edits *cdispec.ContainerEdits) []string {
	if edits == nil {
		return nil
	}
	seen := map[string]bool{}
	var later []string
	for _, e := range env {
		if name, _, ok := strings.Cut(e, "="); ok {
			if seen[name] {
				later = append(later, e)
			}
			seen[name] = true
		}
	}
	return replacedEnv(later, edits.Env)
}
