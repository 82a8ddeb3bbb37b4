package oci

import (
	"encoding/json"
	"os"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// decodeSnapshot reads a saved snapshot, without encoding/json where that is certain to say
// the same; nil of what is none.
func decodeSnapshot(data []byte) *savedSnapshot {
	r := snapshotReader{jsonread.New(data)}
	saved := r.snapshot()
	if !r.Ok() {
		saved = savedSnapshot{}
		if json.Unmarshal(data, &saved) != nil {
			return nil
		}
	}
	return &saved
}

// snapshotReader reads the types of a saved snapshot.
type snapshotReader struct{ *jsonread.Reader }

func (r snapshotReader) snapshot() (s savedSnapshot) {
	r.Object([]string{"kind", "dirs", "files", "commons", "devices"}, func(name string) {
		switch name {
		case "kind":
			s.Kind = r.Text()
		case "dirs":
			s.Dirs = r.Texts()
		case "files":
			s.Files = readList(r, r.file)
		case "commons":
			s.Commons = readList(r, func() *cdispec.ContainerEdits { return jsonread.Pointer(r.Reader, r.edits) })
		case "devices":
			if !r.Null() {
				s.Devices = map[string]savedDevice{}
				r.Members(func(name string) { s.Devices[name] = r.device() })
			}
		}
	})
	return s
}

// readList reads a list, nil of a null.
func readList[T any](r snapshotReader, read func() T) []T {
	if r.Null() {
		return nil
	}
	list := []T{}
	r.List(func() { list = append(list, read()) })
	return list
}

func (r snapshotReader) file() (f savedFile) {
	r.Object([]string{"path", "size", "changed"}, func(name string) {
		switch name {
		case "path":
			f.Path = r.Text()
		case "size":
			f.Size = r.Int(64)
		case "changed":
			f.Changed = r.Int(64)
		}
	})
	return f
}

func (r snapshotReader) device() (d savedDevice) {
	r.Object([]string{"common", "own"}, func(name string) {
		if name == "common" {
			d.Common = int(r.Int(0))
		} else {
			d.Own = jsonread.Pointer(r.Reader, r.edits)
		}
	})
	return d
}

func (r snapshotReader) edits() (e cdispec.ContainerEdits) {
	r.Object([]string{"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"}, func(name string) {
		switch name {
		case "env":
			e.Env = r.Texts()
		case "deviceNodes":
			e.DeviceNodes = readList(r, func() *cdispec.DeviceNode { return jsonread.Pointer(r.Reader, r.node) })
		case "netDevices":
			r.Decode(&e.NetDevices)
		case "hooks":
			e.Hooks = readList(r, func() *cdispec.Hook { return jsonread.Pointer(r.Reader, r.hook) })
		case "mounts":
			e.Mounts = readList(r, func() *cdispec.Mount { return jsonread.Pointer(r.Reader, r.mount) })
		case "intelRdt":
			r.Decode(&e.IntelRdt)
		case "additionalGids":
			e.AdditionalGIDs = readList(r, r.number32)
		}
	})
	return e
}

func (r snapshotReader) number32() uint32 { return uint32(r.Uint(32)) }

func (r snapshotReader) node() (d cdispec.DeviceNode) {
	r.Object([]string{"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}, func(name string) {
		switch name {
		case "path":
			d.Path = r.Text()
		case "hostPath":
			d.HostPath = r.Text()
		case "type":
			d.Type = r.Text()
		case "major":
			d.Major = r.Int(64)
		case "minor":
			d.Minor = r.Int(64)
		case "fileMode":
			d.FileMode = jsonread.Pointer(r.Reader, func() os.FileMode { return os.FileMode(r.Uint(32)) })
		case "permissions":
			d.Permissions = r.Text()
		case "uid":
			d.UID = jsonread.Pointer(r.Reader, r.number32)
		case "gid":
			d.GID = jsonread.Pointer(r.Reader, r.number32)
		}
	})
	return d
}

func (r snapshotReader) hook() (h cdispec.Hook) {
	r.Object([]string{"hookName", "path", "args", "env", "timeout"}, func(name string) {
		switch name {
		case "hookName":
			h.HookName = r.Text()
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

func (r snapshotReader) mount() (m cdispec.Mount) {
	r.Object([]string{"hostPath", "containerPath", "options", "type"}, func(name string) {
		switch name {
		case "hostPath":
			m.HostPath = r.Text()
		case "containerPath":
			m.ContainerPath = r.Text()
		case "options":
			m.Options = r.Texts()
		case "type":
			m.Type = r.Text()
		}
	})
	return m
}
