package ociruntime

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"reflect"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

// What engines write is read without encoding/json, and as that would read it.
func TestReadView(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		data := []byte(read(t, path))
		got, done := readView(data)
		require.True(t, done, path)
		var want view
		require.NoError(t, json.Unmarshal(data, &want))
		require.Equal(t, want.spec(), got, path)
		requireEncoded(t, got)
	}
}

// Whatever is read is what encoding/json reads.
func FuzzReadView(f *testing.F) {
	for _, text := range []string{
		`{"process":{"user":{"uid":1,"gid":2,"umask":18,"additionalGids":[3],"username":"a"},"env":["A=1",null],"capabilities":{"bounding":["CAP_X"]}}}`,
		`{"root":{"path":"/r","readonly":true},"hostname":"h","annotations":{"a":"b\n"},"hooks":{"prestart":[{"path":"/p","args":["p"],"env":[],"timeout":3}],"poststop":null}}`,
		`{"mounts":[{"destination":"/a","type":"bind","source":"/b","options":["ro"],"uidMappings":[{"containerID":0,"hostID":1,"size":2}]},null,{"x":1}]}`,
		`{"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":-1,"minor":null,"access":"rwm"}]},"devices":[{"path":"/dev/x","type":"c","major":1,"minor":2,"fileMode":438,"uid":0,"gid":0}],"namespaces":[{"type":"user","path":"/x"}],"netDevices":{"e":{"name":"f"}},"intelRdt":{"closID":"a"},"cgroupsPath":"/c"}}`,
		`{"linux":{"Devices":[{"path":"/dev/nvidia0"}]}}`, `{"mounts":[],"Mounts":[{"destination":"/x"}]}`, `{"process":null,"linux":{"resources":null}}`, `{"linux":{"devices":{}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, done := readView(data)
		if !done {
			return
		}
		var want view
		require.NoError(t, json.Unmarshal(data, &want))
		require.Equal(t, want.spec(), got)
		requireEncoded(t, got)
	})
}

// requireEncoded wants a spec to be written as encoding/json writes a view.
func requireEncoded(t testing.TB, spec *rspec.Spec) {
	t.Helper()
	want, err := marshal(viewOf(spec))
	require.NoError(t, err)
	got, err := encodeSpec(spec)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// viewOf is the view of a spec.
func viewOf(spec *rspec.Spec) view {
	v := view{Root: spec.Root, Hostname: spec.Hostname, Mounts: spec.Mounts, Hooks: spec.Hooks, Annotations: spec.Annotations}
	if p := spec.Process; p != nil {
		v.Process = &processView{User: p.User, Env: p.Env}
		if p.Capabilities != nil {
			v.Process.Capabilities = &capabilitiesView{p.Capabilities.Bounding}
		}
	}
	if l := spec.Linux; l != nil {
		v.Linux = &linuxView{
			CgroupsPath: l.CgroupsPath, Namespaces: l.Namespaces, Devices: l.Devices,
			NetDevices: l.NetDevices, IntelRdt: l.IntelRdt,
		}
		if l.Resources != nil {
			v.Linux.Resources = &resourcesView{l.Resources.Devices}
		}
	}
	return v
}

// marshal writes JSON as runtimes do: "<" stays "<".
func marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// A member that the runtime's spec gets has to get into what reads and writes the view.
func TestViewHasNoMore(t *testing.T) {
	for of, members := range map[reflect.Type]int{
		reflect.TypeFor[view](): 7, reflect.TypeFor[processView](): 3, reflect.TypeFor[capabilitiesView](): 1,
		reflect.TypeFor[linuxView](): 6, reflect.TypeFor[resourcesView](): 1,
		reflect.TypeFor[rspec.User](): 5, reflect.TypeFor[rspec.Root](): 2, reflect.TypeFor[rspec.Mount](): 6,
		reflect.TypeFor[rspec.Hooks](): 6, reflect.TypeFor[rspec.Hook](): 4, reflect.TypeFor[rspec.LinuxNamespace](): 2,
		reflect.TypeFor[rspec.LinuxDevice](): 7, reflect.TypeFor[rspec.LinuxDeviceCgroup](): 5,
	} {
		require.Equal(t, members, of.NumField(), of.String())
	}
}
