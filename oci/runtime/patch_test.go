package ociruntime

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

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
