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
	return clone(merge(all...))
}

// merge is Merge of edits that are the caller's own: what is in them is not copied.
func merge(all ...*cdispec.ContainerEdits) *cdispec.ContainerEdits {
	merged := &cdispec.ContainerEdits{}
	env := variables{index: map[string]int{}}
	nodes := unique(func(d *cdispec.DeviceNode) string { return path.Clean(d.Path) })
	mounts := unique(func(m *cdispec.Mount) string { return cleanDestination(m.ContainerPath) })
	interfaces := unique(func(d *cdispec.LinuxNetDevice) string { return d.HostInterfaceName })
	for _, e := range all {
		if e == nil {
			continue
		}
		for _, entry := range e.Env {
			env.add(entry)
		}
		nodes.put(e.DeviceNodes)
		mounts.put(e.Mounts)
		interfaces.put(e.NetDevices)
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

// uniqueList is a list in which a key comes once, in the order of the first of each.
type uniqueList[T any] struct {
	key   func(*T) string
	list  []*T
	index map[string]int
}

func unique[T any](key func(*T) string) *uniqueList[T] {
	return &uniqueList[T]{key: key, index: map[string]int{}}
}

// put adds items, each in the place of the one of the same key if there is one.
func (u *uniqueList[T]) put(items []*T) {
	for _, item := range items {
		if item == nil {
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
