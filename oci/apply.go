package oci

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Apply applies edits to an OCI spec, in place. Ours win over what the spec has
// for the same variable, device or path: every mount in the way is removed, every
// duplicate of a variable too. Applying twice changes nothing more. On an error
// the spec is as it was.
//
// The limiter's mounts come last. By depth alone they would be hidden where an
// image makes /.gpuslice a link to a deeper directory that a volume is mounted on.
func Apply(spec *rspec.Spec, edits *cdispec.ContainerEdits) error {
	if spec == nil {
		return errors.New("apply edits: there is no OCI spec")
	}
	if edits == nil {
		return nil
	}
	work := cloneSpec(spec)
	todo := Merge(edits)
	makeRoom(work, todo)

	if err := (&cdi.ContainerEdits{ContainerEdits: todo}).Validate(); err != nil {
		return fmt.Errorf("apply edits: they are not valid CDI: %w", err)
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: todo}).Apply(work); err != nil {
		return fmt.Errorf("apply edits to the OCI spec: %w", err)
	}
	tidy(work)
	*spec = *work
	return nil
}

// makeRoom takes out of a spec what the edits are going to put there, and out of
// the edits the hooks that the spec has already: CDI adds those again.
func makeRoom(spec *rspec.Spec, edits *cdispec.ContainerEdits) {
	replaced := replacedMounts(spec.Mounts, edits)
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m rspec.Mount) bool {
		return slices.Contains(replaced, m.Destination)
	})

	if spec.Process != nil {
		spec.Process.Env = firstOf(spec.Process.Env, edits.Env)
	}

	if spec.Linux != nil {
		added := map[string]bool{}
		for _, d := range edits.DeviceNodes {
			added[path.Clean(d.Path)] = true
		}
		spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(d rspec.LinuxDevice) bool {
			return added[path.Clean(d.Path)]
		})
	}

	edits.Hooks = slices.DeleteFunc(edits.Hooks, func(h *cdispec.Hook) bool {
		return slices.ContainsFunc(hooksOf(spec, h.HookName), func(o rspec.Hook) bool {
			return o.Path == h.Path && slices.Equal(o.Args, h.Args) && slices.Equal(o.Env, h.Env)
		})
	})
}

// firstOf keeps one occurrence of each variable that the edits set, and none of
// those without a value ("NAME"), which a runtime passes as they are.
func firstOf(env, edits []string) []string {
	set := map[string]bool{}
	for _, e := range edits {
		name, _, _ := strings.Cut(e, "=")
		set[name] = true
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, hasValue := strings.Cut(e, "=")
		if !set[name] {
			return false
		}
		drop := seen[name] || !hasValue
		seen[name] = seen[name] || hasValue
		return drop
	})
}

// tidy puts the limiter's mounts last and leaves one of several equal cgroup rules.
func tidy(spec *rspec.Spec) {
	ours := func(m rspec.Mount) bool { return ownedDestination(cleanDestination(m.Destination)) }
	slices.SortStableFunc(spec.Mounts, func(a, b rspec.Mount) int {
		switch {
		case ours(a) == ours(b):
			return 0
		case ours(a):
			return 1
		default:
			return -1
		}
	})

	if spec.Linux == nil || spec.Linux.Resources == nil {
		return
	}
	rules := spec.Linux.Resources.Devices
	// Rules are applied in order: the last of several equal ones is the one that
	// counts, whatever is between them.
	kept := rules[:0:0]
	for i, r := range rules {
		if !slices.ContainsFunc(rules[i+1:], func(o rspec.LinuxDeviceCgroup) bool { return sameRule(r, o) }) {
			kept = append(kept, r)
		}
	}
	spec.Linux.Resources.Devices = kept
}

// sameRule says whether two cgroup rules are equal.
func sameRule(a, b rspec.LinuxDeviceCgroup) bool {
	same := func(x, y *int64) bool { return x == nil && y == nil || x != nil && y != nil && *x == *y }
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access && same(a.Major, b.Major) && same(a.Minor, b.Minor)
}

// hooksOf are a spec's hooks of one of CDI's hook names.
func hooksOf(spec *rspec.Spec, name string) []rspec.Hook {
	if spec.Hooks == nil {
		return nil
	}
	switch name {
	case cdi.PrestartHook:
		//lint:ignore SA1019 it is deprecated, and CDI specs still name it
		return spec.Hooks.Prestart
	case cdi.CreateRuntimeHook:
		return spec.Hooks.CreateRuntime
	case cdi.CreateContainerHook:
		return spec.Hooks.CreateContainer
	case cdi.StartContainerHook:
		return spec.Hooks.StartContainer
	case cdi.PoststartHook:
		return spec.Hooks.Poststart
	case cdi.PoststopHook:
		return spec.Hooks.Poststop
	}
	return nil
}

// cloneSpec copies a spec as deeply as edits change it: what a list's items point to is
// never changed, and what no edit is of is shared.
func cloneSpec(spec *rspec.Spec) *rspec.Spec {
	work := *spec
	work.Mounts, work.Annotations = slices.Clone(spec.Mounts), maps.Clone(spec.Annotations)
	if work.Process = pointTo(spec.Process); work.Process != nil {
		work.Process.Env = slices.Clone(spec.Process.Env)
		work.Process.User.AdditionalGids = slices.Clone(spec.Process.User.AdditionalGids)
	}
	if work.Hooks = pointTo(spec.Hooks); work.Hooks != nil {
		for _, list := range []*[]rspec.Hook{
			//lint:ignore SA1019 it is deprecated, and CDI specs still name it
			&work.Hooks.Prestart,
			&work.Hooks.CreateRuntime, &work.Hooks.CreateContainer, &work.Hooks.StartContainer,
			&work.Hooks.Poststart, &work.Hooks.Poststop,
		} {
			*list = slices.Clone(*list)
		}
	}
	if work.Linux = pointTo(spec.Linux); work.Linux != nil {
		work.Linux.Devices = slices.Clone(spec.Linux.Devices)
		work.Linux.NetDevices = maps.Clone(spec.Linux.NetDevices)
		if work.Linux.Resources = pointTo(spec.Linux.Resources); work.Linux.Resources != nil {
			work.Linux.Resources.Devices = slices.Clone(spec.Linux.Resources.Devices)
		}
	}
	return &work
}
