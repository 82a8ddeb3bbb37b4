package oci

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Apply applies edits to an OCI spec, in place, or returns an error without a change. It is idempotent. The
// limiter's mounts come last: if an image links /.gpuslice elsewhere, a volume there could hide them.
func Apply(spec *rspec.Spec, edits *cdispec.ContainerEdits) error {
	if spec == nil {
		return errors.New("apply edits: there is no OCI spec")
	}
	if edits == nil {
		return nil
	}
	work := cloneSpec(spec)
	todo := Merge(edits)
	removeReplaced(work, todo)

	if err := (&cdi.ContainerEdits{ContainerEdits: todo}).Validate(); err != nil {
		return fmt.Errorf("apply edits: they are not valid CDI: %w", err)
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: todo}).Apply(work); err != nil {
		return fmt.Errorf("apply edits to the OCI spec: %w", err)
	}
	limiterMountsLast(work)
	uniqueRules(work)
	*spec = *work
	return nil
}

// removeReplaced removes from the spec what the edits replace, and from the edits hooks that the spec has: CDI would
// add them again.
func removeReplaced(spec *rspec.Spec, edits *cdispec.ContainerEdits) {
	replaced := replacedMounts(spec.Mounts, edits)
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m rspec.Mount) bool {
		return slices.Contains(replaced, m.Destination)
	})
	if spec.Process != nil {
		spec.Process.Env = firstOf(spec.Process.Env, edits.Env)
	}
	if spec.Linux != nil {
		spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(d rspec.LinuxDevice) bool {
			return slices.ContainsFunc(edits.DeviceNodes, func(n *cdispec.DeviceNode) bool { return path.Clean(n.Path) == path.Clean(d.Path) })
		})
	}
	if spec.Hooks != nil {
		have := HookLists(spec.Hooks)
		edits.Hooks = slices.DeleteFunc(edits.Hooks, func(h *cdispec.Hook) bool {
			return have[h.HookName] != nil && slices.ContainsFunc(*have[h.HookName], func(o rspec.Hook) bool {
				return o.Path == h.Path && slices.Equal(o.Args, h.Args) && slices.Equal(o.Env, h.Env)
			})
		})
	}
}

// firstOf keeps the first value of each variable that the edits set, and no entry without a value ("NAME"), which a
// runtime would pass on.
func firstOf(env, edits []string) []string {
	set, seen := byName(edits), map[string]bool{}
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, hasValue := strings.Cut(e, "=")
		if _, is := set[name]; !is {
			return false
		}
		drop := seen[name] || !hasValue
		seen[name] = seen[name] || hasValue
		return drop
	})
}

func limiterMountsLast(spec *rspec.Spec) {
	owned := func(m rspec.Mount) bool { return OwnedDestination(m.Destination) }
	last := slices.DeleteFunc(slices.Clone(spec.Mounts), func(m rspec.Mount) bool { return !owned(m) })
	spec.Mounts = append(slices.DeleteFunc(spec.Mounts, owned), last...)
}

// uniqueRules keeps the last of equal cgroup rules: they apply in order.
func uniqueRules(spec *rspec.Spec) {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return
	}
	rules := spec.Linux.Resources.Devices
	kept := rules[:0:0]
	for i, r := range rules {
		if !slices.ContainsFunc(rules[i+1:], func(o rspec.LinuxDeviceCgroup) bool { return reflect.DeepEqual(r, o) }) {
			kept = append(kept, r)
		}
	}
	spec.Linux.Resources.Devices = kept
}

// HookLists returns the lists of hooks by their CDI name.
func HookLists(h *rspec.Hooks) map[string]*[]rspec.Hook {
	return map[string]*[]rspec.Hook{
		//lint:ignore SA1019 it is deprecated, and CDI specs still name it
		cdi.PrestartHook:        &h.Prestart,
		cdi.CreateRuntimeHook:   &h.CreateRuntime,
		cdi.CreateContainerHook: &h.CreateContainer,
		cdi.StartContainerHook:  &h.StartContainer,
		cdi.PoststartHook:       &h.Poststart,
		cdi.PoststopHook:        &h.Poststop,
	}
}

// cloneSpec copies what edits can change. The rest is shared.
func cloneSpec(spec *rspec.Spec) *rspec.Spec {
	work := *spec
	work.Mounts, work.Annotations = slices.Clone(spec.Mounts), maps.Clone(spec.Annotations)
	if work.Process = pointTo(spec.Process); work.Process != nil {
		work.Process.Env = slices.Clone(spec.Process.Env)
		work.Process.User.AdditionalGids = slices.Clone(spec.Process.User.AdditionalGids)
	}
	if work.Hooks = pointTo(spec.Hooks); work.Hooks != nil {
		for _, list := range HookLists(work.Hooks) {
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
