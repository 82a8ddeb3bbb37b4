package ociruntime

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/oci"
)

// Whatever CDI's edits can change comes out in the config as it does in a spec that is
// read whole, and what they don't change is as it was.
func TestEditsReachTheConfig(t *testing.T) {
	gid, timeout := uint32(44), 5
	edits := &cdispec.ContainerEdits{
		Env:         []string{"PATH=/changed", "NEW=1"},
		DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/null", GID: &gid, Permissions: "r"}, {Path: "/dev/new", HostPath: "/dev/zero"}},
		Mounts: []*cdispec.Mount{
			{HostPath: "/x", ContainerPath: "/proc", Type: "bind", Options: []string{"ro"}}, {HostPath: "/y", ContainerPath: "/y/z"},
		},
		NetDevices:     []*cdispec.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "a"}},
		IntelRdt:       &cdispec.IntelRdt{ClosID: "a", Schemata: []string{"L3:0=1"}, EnableMonitoring: true},
		AdditionalGIDs: []uint32{44, 45},
	}
	for _, name := range []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"} {
		edits.Hooks = append(edits.Hooks, &cdispec.Hook{HookName: name, Path: "/bin/hook", Args: []string{"hook"}, Env: []string{"A=1"}, Timeout: &timeout})
	}
	paths, err := filepath.Glob("testdata/specs/*.json")
	require.NoError(t, err)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			data := []byte(read(t, path))
			var whole rspec.Spec
			require.NoError(t, json.Unmarshal(data, &whole))
			require.NoError(t, oci.Apply(&whole, edits))

			b, err := decodeBundle(data)
			require.NoError(t, err)
			require.NoError(t, oci.Apply(b.Spec, edits))
			out, changed, err := b.encode()
			require.NoError(t, err)
			require.True(t, changed)
			var made rspec.Spec
			require.NoError(t, json.Unmarshal(out, &made))
			want, err := json.Marshal(whole)
			require.NoError(t, err)
			got, err := json.Marshal(made)
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(got))
		})
	}
}

// A second value of a field, which one low-level runtime reads and another one ignores, must not
// pass the checks.
func TestRepeatedFieldIsRejected(t *testing.T) {
	device := `[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}]`
	for _, config := range []string{
		`{"mounts":[],"mounts":[{"destination":"/x"}]}`,
		`{"mounts":[{"destination":"/y"}],"Mounts":[{"destination":"/x"}]}`,
		`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"],"Env":[]}}`,
		`{"linux":{"devices":` + device + `},"LINUX":{"devices":[]}}`,
		`{"linux":{"resources":{"devices":[{"allow":true,"access":"rwm","Access":""}]}}}`,
		`{"process":{"env":[]},"proceſſ":{"env":["A=1"]}}`,
		`{"annotations":{"a":"1","a":"2"}}`,
		`{"unknown":[{"a":1,"A":2}]}`,
	} {
		_, err := decodeBundle([]byte(config))
		assert.ErrorContains(t, err, "duplicate key", config)
	}
	b, err := decodeBundle([]byte(`{"annotations":{"a":"1","A":"2"},"linux":{"sysctl":{"x":"1","X":"2"}}}`))
	require.NoError(t, err, "names of annotations differ in case")
	require.Len(t, b.Spec.Annotations, 2)
}

// encoding/json, and so runc, reads a field in another case. A changed field would be in the
// config twice.
func TestChangedFieldOfAnotherCaseIsRejected(t *testing.T) {
	b, err := decodeBundle([]byte(`{"Linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}]}}`))
	require.NoError(t, err)
	require.Len(t, b.Spec.Linux.Devices, 1)
	b.Spec.Linux.Devices = nil
	_, _, err = b.encode()
	require.ErrorContains(t, err, "duplicate key")
}

// Large numbers, and fields of the types that this program does not change, stay as they are.
func TestOtherFieldsKeepTheirSpelling(t *testing.T) {
	const rest = `"linux":{"resources":{"memory":{"limit":9007199254740993},"unknown":18446744073709551615},"seccomp":{"b":1.0,"a":"\u003c"}}`
	b, err := decodeBundle([]byte(`{` + rest + `,"hostname":"a"}`))
	require.NoError(t, err)
	b.Spec.Hostname = "b"
	data, changed, err := b.encode()
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, `{"hostname":"b",`+rest+`}`, string(data))
}

func TestPatch(t *testing.T) {
	for _, c := range []struct{ description, raw, before, after, want string }{
		{"nothing changed", ` {"b": 1.0}`, `{"b":1}`, `{"b":1}`, ` {"b": 1.0}`},
		{"a value", `{"a":1,"x":2}`, `{"a":1}`, `{"a":3}`, `{"a":3,"x":2}`},
		{"a new value", `{"x":2}`, `{}`, `{"a":3}`, `{"a":3,"x":2}`},
		{"a value that went", `{"a":1,"x":2}`, `{"a":1}`, `{}`, `{"x":2}`},
		{"one that this program adds by itself", `{"x":2}`, `{"root":null}`, `{"root":null}`, `{"x":2}`},
		{"deep", `{"a":{"b":{"c":1,"x":2},"y":3}}`, `{"a":{"b":{"c":1}}}`, `{"a":{"b":{"c":4}}}`, `{"a":{"b":{"c":4,"x":2},"y":3}}`},
		{"items that stay", `[{"d":"/a","x":1},{"d":"/b","x":2}]`, `[{"d":"/a"},{"d":"/b"}]`, `[{"d":"/b"},{"d":"/c"}]`, `[{"d":"/b","x":2},{"d":"/c"}]`},
		{"equal items keep their own", `[{"d":1,"x":1},{"d":1,"x":2}]`, `[{"d":1},{"d":1}]`, `[{"d":1},{"d":1},{"d":1}]`, `[{"d":1,"x":1},{"d":1,"x":2},{"d":1}]`},
		{"a null becomes something", `{"a":null}`, `{"a":null}`, `{"a":[1]}`, `{"a":[1]}`},
		{"numbers are not rounded", `{"n":18446744073709551615,"a":1}`, `{"a":1}`, `{"a":2}`, `{"a":2,"n":18446744073709551615}`},
		{"markup stays", `{"s":"<a&b>","a":1}`, `{"a":1}`, `{"a":"<&>"}`, `{"a":"<&>","s":"<a&b>"}`},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := patch(json.RawMessage(c.raw), json.RawMessage(c.before), json.RawMessage(c.after))
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
		})
	}
}

func TestPatchRefusesAnotherDocument(t *testing.T) {
	_, err := patch(json.RawMessage(`{"a":[1,2]}`), json.RawMessage(`{"a":[1]}`), json.RawMessage(`{"a":[3]}`))
	require.EqualError(t, err, "a: a list of 2 items was decoded as 1")
}

// The written config has the change, for any input.
func FuzzBundle(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.0.2","process":{"env":["A=1"],"x":1},"mounts":[{"destination":"/a","y":2}]}`))
	f.Add([]byte(`{"Linux":{"resources":{}},"annotations":{"a":"b"}}`))
	f.Add([]byte(`{"hooks":null,"linux":{"resources":{"devices":[{"allow":false}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := decodeBundle(data)
		if err != nil {
			return
		}
		b.Spec.Hostname += "-changed"
		out, changed, err := b.encode()
		if err != nil {
			return
		}
		require.True(t, changed)
		again, err := decodeBundle(out)
		require.NoError(t, err)
		require.Equal(t, b.Spec.Hostname, again.Spec.Hostname)
	})
}
