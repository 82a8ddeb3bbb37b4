package oci

import (
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
	// Edits are to be applied whole or not at all.
	Edits *cdispec.ContainerEdits
	// Injection is the way that was chosen: InjectCDI or InjectEnvvar.
	Injection Injection
	// Enforcement is how its limits are enforced, for its annotation and its claim.
	Enforcement Enforcement
	// Replaced is what the container had in our places.
	Replaced Replaced
}

// Replaced is what of a container's own has to make room for the edits.
type Replaced struct {
	// Env are the names of variables that the container had set otherwise. The
	// edits set them again.
	Env []string
	// Mounts are destinations, spelled as the container spells them. They have to
	// be removed before the edits are added.
	Mounts []string
}

// Edits says what a container gets that was granted shares of GPUs. It is pure:
// the same arguments give the same answer.
//
// An error means that the container must not be created. It names what is wrong
// and what to do; the caller adds whose container it is.
func Edits(shares []grant.Share, s Settings, c Container, devices DeviceEdits) (Result, error) {
	if err := checkShares(shares); err != nil {
		return Result{}, err
	}
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	if err := c.checkDir(); err != nil {
		return Result{}, err
	}
	if err := checkLimitNames(c.Env); err != nil {
		return Result{}, err
	}

	way, visible, err := injectDevices(uuidsOf(shares), s, c, devices)
	if err != nil {
		return Result{}, err
	}
	if !s.Graphics {
		withoutGraphics(visible)
	}
	if err := checkUngranted(uuidsOf(shares), c, visible); err != nil {
		return Result{}, err
	}

	how, err := enforcement(s.limiterMode(), c, checkStubs(visible, way))
	if err != nil {
		return Result{}, err
	}
	edits, err := compose(visible, s.Stubs, how, &cdispec.ContainerEdits{
		Env:    environment(shares, s, c, way),
		Mounts: limiterMounts(s, c, how),
		Hooks:  mountCheck(s.MountCheck),
	})
	if err != nil {
		return Result{}, err
	}
	return Result{
		Edits:       edits,
		Injection:   way,
		Enforcement: how,
		Replaced: Replaced{
			Env:    replacedEnv(c.Env, edits.Env),
			Mounts: replacedMounts(c.Mounts, edits),
		},
	}, nil
}

// MountCheckCommand is the command of gpuslice-runtime that the hook calls.
const MountCheckCommand = "check-mounts"

// mountCheck returns the hook that checks a container's mounts before its program runs. An image
// can have links at the paths of the limiter's files, which are seen only after the mounts.
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

// mountCheckSeconds is far more than the check of a few files takes.
const mountCheckSeconds = 10

// compose puts the limiter's edits over those of the GPUs. Both are used up.
func compose(visible *cdispec.ContainerEdits, f Stubs, how Enforcement, limits *cdispec.ContainerEdits) (*cdispec.ContainerEdits, error) {
	for _, m := range visible.Mounts {
		if ownedDestination(cleanDestination(m.ContainerPath)) {
			return nil, fmt.Errorf("the CDI spec mounts %s, where the limiter's files go: remove that mount from the spec", m.ContainerPath)
		}
	}
	if how.stubs() {
		limits.Mounts = append(limits.Mounts, mountStubs(visible, f)...)
	}
	if how == EnforceLibrary {
		withoutCompat(visible)
	}
	edits := merge(visible, limits)
	if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
		return nil, fmt.Errorf("the container's edits are not valid CDI: %w", err)
	}
	return edits, nil
}

// checkShares refuses what can't be limited. The codecs of package grant check the
// same at their doors; this is the last one.
func checkShares(shares []grant.Share) error {
	if len(shares) > limiter.MaxDevices {
		return fmt.Errorf("the grant has %d GPUs, and a container can be limited on %d at most", len(shares), limiter.MaxDevices)
	}
	return grant.ValidateShares(shares)
}

// replacedEnv are the names that a container had set to something else.
func replacedEnv(env, edits []string) []string {
	ours := map[string]string{}
	for _, e := range edits {
		name, _, _ := strings.Cut(e, "=")
		ours[name] = e
	}
	var names []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if entry, set := ours[name]; ok && set && entry != e {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// UnsafeDuplicates are the names that the edits set and that the environment has
// more than once with a value other than the edits'. A runtime that replaces one
// occurrence only would let another win: containerd's NRI does (nri v0.12,
// generate.AdjustEnv replaces the first, and the second then overwrites it), and
// kubelet does pass a name twice when a device plugin and the pod both set it. A
// caller that can't rewrite the whole environment refuses such a container.
func UnsafeDuplicates(env []string, edits *cdispec.ContainerEdits) []string {
	if edits == nil {
		return nil
	}
	ours := map[string]string{}
	for _, e := range edits.Env {
		name, _, _ := strings.Cut(e, "=")
		ours[name] = e
	}
	count := map[string]int{}
	var names []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		entry, set := ours[name]
		if !ok || !set {
			continue
		}
		if count[name]++; count[name] > 1 && e != entry {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
