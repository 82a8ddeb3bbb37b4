package ociruntime

import (
	"os"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// readView is decodeSpec without encoding/json, which takes longer to look at the types
// than to read most configs. What it can't read for sure it leaves to that.
func readView(data []byte) (spec *rspec.Spec, read bool) {
	r := viewReader{jsonread.New(data)}
	spec = &rspec.Spec{}
	r.Object([]string{"process", "root", "hostname", "mounts", "hooks", "annotations", "linux"}, func(name string) {
		switch name {
		case "process":
			spec.Process = jsonread.Pointer(r.Reader, r.process)
		case "root":
			spec.Root = jsonread.Pointer(r.Reader, r.root)
		case "hostname":
			spec.Hostname = r.Text()
		case "mounts":
			spec.Mounts = listOf(r, r.mount)
		case "hooks":
			spec.Hooks = jsonread.Pointer(r.Reader, r.hooks)
		case "annotations":
			if !r.Null() {
				spec.Annotations = map[string]string{}
				r.Members(func(name string) { spec.Annotations[name] = r.Text() })
			}
		case "linux":
			spec.Linux = jsonread.Pointer(r.Reader, r.linux)
		}
	})
	return spec, r.Ok()
}

// viewReader reads the types of a view.
type viewReader struct{ *jsonread.Reader }

// listOf reads a list, nil of a null.
func listOf[T any](r viewReader, read func() T) []T {
	if r.Null() {
		return nil
	}
	list := []T{}
	r.List(func() { list = append(list, read()) })
	return list
}

func (r viewReader) process() (p rspec.Process) {
	r.Object([]string{"user", "env", "capabilities"}, func(name string) {
		switch name {
		case "user":
			p.User = r.user()
		case "env":
			p.Env = r.Texts()
		case "capabilities":
			p.Capabilities = jsonread.Pointer(r.Reader, func() (c rspec.LinuxCapabilities) {
				r.Object([]string{"bounding"}, func(string) { c.Bounding = r.Texts() })
				return c
			})
		}
	})
	return p
}

func (r viewReader) user() (u rspec.User) {
	r.Object([]string{"uid", "gid", "umask", "additionalGids", "username"}, func(name string) {
		switch name {
		case "uid":
			u.UID = uint32(r.Uint(32))
		case "gid":
			u.GID = uint32(r.Uint(32))
		case "umask":
			u.Umask = jsonread.Pointer(r.Reader, r.number32)
		case "additionalGids":
			u.AdditionalGids = listOf(r, r.number32)
		case "username":
			u.Username = r.Text()
		}
	})
	return u
}

func (r viewReader) number32() uint32 { return uint32(r.Uint(32)) }

func (r viewReader) number64() int64 { return r.Int(64) }

func (r viewReader) root() (root rspec.Root) {
	r.Object([]string{"path", "readonly"}, func(name string) {
		if name == "path" {
			root.Path = r.Text()
		} else {
			root.Readonly = r.Bool()
		}
	})
	return root
}

func (r viewReader) mount() (m rspec.Mount) {
	r.Object([]string{"destination", "type", "source", "options", "uidMappings", "gidMappings"}, func(name string) {
		switch name {
		case "destination":
			m.Destination = r.Text()
		case "type":
			m.Type = r.Text()
		case "source":
			m.Source = r.Text()
		case "options":
			m.Options = r.Texts()
		case "uidMappings":
			r.Decode(&m.UIDMappings)
		case "gidMappings":
			r.Decode(&m.GIDMappings)
		}
	})
	return m
}

func (r viewReader) hooks() (h rspec.Hooks) {
	r.Object(hookNames, func(name string) { *hooksOf(&h, name) = listOf(r, r.hook) })
	return h
}

// hookNames are the names of hooks as configs have them.
var hookNames = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

// hooksOf are the hooks of such a name.
func hooksOf(h *rspec.Hooks, name string) *[]rspec.Hook {
	switch name {
	case "prestart":
		//lint:ignore SA1019 it is deprecated, and configs still have it
		return &h.Prestart
	case "createRuntime":
		return &h.CreateRuntime
	case "createContainer":
		return &h.CreateContainer
	case "startContainer":
		return &h.StartContainer
	case "poststart":
		return &h.Poststart
	}
	return &h.Poststop
}

func (r viewReader) hook() (h rspec.Hook) {
	r.Object([]string{"path", "args", "env", "timeout"}, func(name string) {
		switch name {
		case "path":
			h.Path = r.Text()
		case "args":
			h.Args = r.Texts()
		case "env":
			h.Env = r.Texts()
		case "timeout":
			h.Timeout = jsonread.Pointer(r.Reader, func() int { return int(r.Int(0)) })
		}
	})
	return h
}

func (r viewReader) linux() (l rspec.Linux) {
	r.Object([]string{"resources", "cgroupsPath", "namespaces", "devices", "netDevices", "intelRdt"}, func(name string) {
		switch name {
		case "resources":
			l.Resources = jsonread.Pointer(r.Reader, func() (all rspec.LinuxResources) {
				r.Object([]string{"devices"}, func(string) { all.Devices = listOf(r, r.rule) })
				return all
			})
		case "cgroupsPath":
			l.CgroupsPath = r.Text()
		case "namespaces":
			l.Namespaces = listOf(r, r.namespace)
		case "devices":
			l.Devices = listOf(r, r.device)
		case "netDevices":
			r.Decode(&l.NetDevices)
		case "intelRdt":
			r.Decode(&l.IntelRdt)
		}
	})
	return l
}

func (r viewReader) namespace() (n rspec.LinuxNamespace) {
	r.Object([]string{"type", "path"}, func(name string) {
		if name == "type" {
			n.Type = rspec.LinuxNamespaceType(r.Text())
		} else {
			n.Path = r.Text()
		}
	})
	return n
}

func (r viewReader) device() (d rspec.LinuxDevice) {
	r.Object([]string{"path", "type", "major", "minor", "fileMode", "uid", "gid"}, func(name string) {
		switch name {
		case "path":
			d.Path = r.Text()
		case "type":
			d.Type = r.Text()
		case "major":
			d.Major = r.Int(64)
		case "minor":
			d.Minor = r.Int(64)
		case "fileMode":
			d.FileMode = jsonread.Pointer(r.Reader, func() os.FileMode { return os.FileMode(r.Uint(32)) })
		case "uid":
			d.UID = jsonread.Pointer(r.Reader, r.number32)
		case "gid":
			d.GID = jsonread.Pointer(r.Reader, r.number32)
		}
	})
	return d
}

func (r viewReader) rule() (d rspec.LinuxDeviceCgroup) {
	r.Object([]string{"allow", "type", "major", "minor", "access"}, func(name string) {
		switch name {
		case "allow":
			d.Allow = r.Bool()
		case "type":
			d.Type = r.Text()
		case "major":
			d.Major = jsonread.Pointer(r.Reader, r.number64)
		case "minor":
			d.Minor = jsonread.Pointer(r.Reader, r.number64)
		case "access":
			d.Access = r.Text()
		}
	})
	return d
}
