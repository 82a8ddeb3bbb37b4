package ociruntime

import (
	"encoding/json"
	"maps"
	"slices"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// encodeSpec writes the part of a config that a view has, as encoding/json writes a view.
func encodeSpec(spec *rspec.Spec) (json.RawMessage, error) {
	w := viewWriter{&jsonread.Writer{Buf: make([]byte, 0, 4<<10)}}
	w.Begin('{')
	if spec.Process != nil {
		w.Name("process")
		w.process(spec.Process)
	}
	if spec.Root != nil {
		w.Name("root")
		w.Begin('{')
		w.Name("path")
		w.Text(spec.Root.Path)
		if spec.Root.Readonly {
			w.Name("readonly")
			w.Bool(true)
		}
		w.End('}')
	}
	w.text("hostname", spec.Hostname)
	list(w, "mounts", spec.Mounts, w.mount)
	if spec.Hooks != nil {
		w.Name("hooks")
		w.Begin('{')
		for _, name := range hookNames {
			list(w, name, *hooksOf(spec.Hooks, name), w.hook)
		}
		w.End('}')
	}
	if len(spec.Annotations) > 0 {
		w.Name("annotations")
		w.Begin('{')
		for _, name := range slices.Sorted(maps.Keys(spec.Annotations)) {
			w.Name(name)
			w.Text(spec.Annotations[name])
		}
		w.End('}')
	}
	if spec.Linux != nil {
		w.Name("linux")
		w.linux(spec.Linux)
	}
	w.End('}')
	return w.Buf, w.Err()
}

// viewWriter writes the types of a view.
type viewWriter struct{ *jsonread.Writer }

// list writes a member that is a list, if there is something in it.
func list[T any](w viewWriter, name string, items []T, write func(T)) {
	if len(items) == 0 {
		return
	}
	w.Name(name)
	w.Begin('[')
	for _, item := range items {
		write(item)
	}
	w.End(']')
}

// text writes a member that is a text, if it isn't empty.
func (w viewWriter) text(name, text string) {
	if text != "" {
		w.Name(name)
		w.Text(text)
	}
}

func (w viewWriter) texts(name string, texts []string) { list(w, name, texts, w.Text) }

// number writes a member that is a number, if it is there.
func number[T int | int64 | uint32](w viewWriter, name string, n *T) {
	if n != nil {
		w.Name(name)
		w.Int(int64(*n))
	}
}

func (w viewWriter) process(p *rspec.Process) {
	w.Begin('{')
	w.Name("user")
	w.Begin('{')
	w.Name("uid")
	w.Int(int64(p.User.UID))
	w.Name("gid")
	w.Int(int64(p.User.GID))
	number(w, "umask", p.User.Umask)
	list(w, "additionalGids", p.User.AdditionalGids, func(gid uint32) { w.Int(int64(gid)) })
	w.text("username", p.User.Username)
	w.End('}')
	w.texts("env", p.Env)
	if p.Capabilities != nil {
		w.Name("capabilities")
		w.Begin('{')
		w.texts("bounding", p.Capabilities.Bounding)
		w.End('}')
	}
	w.End('}')
}

func (w viewWriter) mount(m rspec.Mount) {
	w.Begin('{')
	w.Name("destination")
	w.Text(m.Destination)
	w.text("type", m.Type)
	w.text("source", m.Source)
	w.texts("options", m.Options)
	list(w, "uidMappings", m.UIDMappings, func(m rspec.LinuxIDMapping) { w.Value(m) })
	list(w, "gidMappings", m.GIDMappings, func(m rspec.LinuxIDMapping) { w.Value(m) })
	w.End('}')
}

func (w viewWriter) hook(h rspec.Hook) {
	w.Begin('{')
	w.Name("path")
	w.Text(h.Path)
	w.texts("args", h.Args)
	w.texts("env", h.Env)
	number(w, "timeout", h.Timeout)
	w.End('}')
}

func (w viewWriter) linux(l *rspec.Linux) {
	w.Begin('{')
	if l.Resources != nil {
		w.Name("resources")
		w.Begin('{')
		list(w, "devices", l.Resources.Devices, w.rule)
		w.End('}')
	}
	w.text("cgroupsPath", l.CgroupsPath)
	list(w, "namespaces", l.Namespaces, func(n rspec.LinuxNamespace) {
		w.Begin('{')
		w.Name("type")
		w.Text(string(n.Type))
		w.text("path", n.Path)
		w.End('}')
	})
	list(w, "devices", l.Devices, w.device)
	if len(l.NetDevices) > 0 {
		w.Name("netDevices")
		w.Value(l.NetDevices)
	}
	if l.IntelRdt != nil {
		w.Name("intelRdt")
		w.Value(l.IntelRdt)
	}
	w.End('}')
}

func (w viewWriter) device(d rspec.LinuxDevice) {
	w.Begin('{')
	w.Name("path")
	w.Text(d.Path)
	w.Name("type")
	w.Text(d.Type)
	w.Name("major")
	w.Int(d.Major)
	w.Name("minor")
	w.Int(d.Minor)
	if d.FileMode != nil {
		w.Name("fileMode")
		w.Int(int64(*d.FileMode))
	}
	number(w, "uid", d.UID)
	number(w, "gid", d.GID)
	w.End('}')
}

func (w viewWriter) rule(d rspec.LinuxDeviceCgroup) {
	w.Begin('{')
	w.Name("allow")
	w.Bool(d.Allow)
	w.text("type", d.Type)
	number(w, "major", d.Major)
	number(w, "minor", d.Minor)
	w.text("access", d.Access)
	w.End('}')
}
