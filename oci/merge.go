package oci

import (
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Merge returns a copy of several edits. Of two values for a variable, path, interface or hook the later one counts.
func Merge(all ...*cdispec.ContainerEdits) *cdispec.ContainerEdits {
	return clone(merge(all...))
}

// merge is Merge without the copy.
func merge(all ...*cdispec.ContainerEdits) *cdispec.ContainerEdits {
	merged := &cdispec.ContainerEdits{}
	env := newVariables()
	nodes := unique(func(d *cdispec.DeviceNode) string { return path.Clean(d.Path) })
	mounts := unique(func(m *cdispec.Mount) string { return cleanDestination(m.ContainerPath) })
	interfaces := unique(func(d *cdispec.LinuxNetDevice) string { return d.HostInterfaceName })
	for _, e := range all {
		if e == nil {
			continue
		}
		env.put(e.Env...)
		nodes.put(e.DeviceNodes...)
		mounts.put(e.Mounts...)
		interfaces.put(e.NetDevices...)
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
	merged.Env, merged.DeviceNodes, merged.Mounts, merged.NetDevices = env.list, nodes.list, mounts.list, interfaces.list
	return merged
}

// uniqueList has one item for each key.
type uniqueList[T comparable] struct {
	key   func(T) string
	list  []T
	index map[string]int
}

func unique[T comparable](key func(T) string) *uniqueList[T] {
	return &uniqueList[T]{key: key, index: map[string]int{}}
}

// put keeps the place of the item that it replaces.
func (u *uniqueList[T]) put(items ...T) {
	var none T
	for _, item := range items {
		if item == none {
			continue
		}
		key := u.key(item)
		if i, ok := u.index[key]; ok {
			u.list[i] = item
			continue
		}
		u.index[key] = len(u.list)
		u.list = append(u.list, item)
	}
}

func newVariables() *uniqueList[string] { return unique(variableName) }

func variableName(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	return name
}

func byName(env []string) map[string]string {
	entries := map[string]string{}
	for _, e := range env {
		entries[variableName(e)] = e
	}
	return entries
}

func sameHook(a, b *cdispec.Hook) bool {
	return a.HookName == b.HookName && a.Path == b.Path && slices.Equal(a.Args, b.Args) && slices.Equal(a.Env, b.Env)
}

// clone is deep: CDI fills in nodes when it applies edits, and must not change a registry's.
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

func pointTo[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
