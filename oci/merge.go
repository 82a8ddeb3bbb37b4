package oci

import (
	"path"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Merge returns one copy of several edits, in which everything comes once. Where
// two say different things of the same variable, path, interface or hook, the
// later wins, as when CDI applies them one after the other.
func Merge(all ...*cdispec.ContainerEdits) *cdispec.ContainerEdits {
	merged := &cdispec.ContainerEdits{}
	env := variables{index: map[string]int{}}
	for _, e := range all {
		if e == nil {
			continue
		}
		for _, entry := range e.Env {
			env.add(entry)
		}
		for _, d := range e.DeviceNodes {
			merged.DeviceNodes = put(merged.DeviceNodes, d, func(d *cdispec.DeviceNode) string { return path.Clean(d.Path) })
		}
		for _, m := range e.Mounts {
			merged.Mounts = put(merged.Mounts, m, func(m *cdispec.Mount) string { return cleanDestination(m.ContainerPath) })
		}
		for _, d := range e.NetDevices {
			merged.NetDevices = put(merged.NetDevices, d, func(d *cdispec.LinuxNetDevice) string { return d.HostInterfaceName })
		}
		for _, h := range e.Hooks {
			if !slices.ContainsFunc(merged.Hooks, func(o *cdispec.Hook) bool { return sameHook(o, h) }) {
				merged.Hooks = append(merged.Hooks, h)
			}
		}
		for _, gid := range e.AdditionalGIDs {
			if !slices.Contains(merged.AdditionalGIDs, gid) {
				merged.AdditionalGIDs = append(merged.AdditionalGIDs, gid)
			}
		}
		if e.IntelRdt != nil {
			merged.IntelRdt = e.IntelRdt
		}
	}
	merged.Env = env.list
	return clone(merged)
}

// put adds an item, or replaces the one of the same key.
func put[T any](list []*T, item *T, key func(*T) string) []*T {
	if item == nil {
		return list
	}
	for i := range list {
		if key(list[i]) == key(item) {
			list[i] = item
			return list
		}
	}
	return append(list, item)
}

// sameHook says whether two hooks would do the same.
func sameHook(a, b *cdispec.Hook) bool {
	return a.HookName == b.HookName && a.Path == b.Path && slices.Equal(a.Args, b.Args) && slices.Equal(a.Env, b.Env)
}

// clone copies edits deeply. CDI fills in what a device node lacks when it is
// applied, and must not do so in a registry's.
func clone(e *cdispec.ContainerEdits) *cdispec.ContainerEdits {
	c := &cdispec.ContainerEdits{
		Env:            slices.Clone(e.Env),
		AdditionalGIDs: slices.Clone(e.AdditionalGIDs),
		IntelRdt:       pointTo(e.IntelRdt),
	}
	for _, d := range e.DeviceNodes {
		n := *d
		n.FileMode, n.UID, n.GID = pointTo(d.FileMode), pointTo(d.UID), pointTo(d.GID)
		c.DeviceNodes = append(c.DeviceNodes, &n)
	}
	for _, m := range e.Mounts {
		n := *m
		n.Options = slices.Clone(m.Options)
		c.Mounts = append(c.Mounts, &n)
	}
	for _, h := range e.Hooks {
		n := *h
		n.Args, n.Env, n.Timeout = slices.Clone(h.Args), slices.Clone(h.Env), pointTo(h.Timeout)
		c.Hooks = append(c.Hooks, &n)
	}
	for _, d := range e.NetDevices {
		c.NetDevices = append(c.NetDevices, pointTo(d))
	}
	if c.IntelRdt != nil {
		c.IntelRdt.Schemata = slices.Clone(c.IntelRdt.Schemata)
	}
	return c
}

// pointTo copies what a pointer points to.
func pointTo[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
