package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci/internal/jsonread"
)

// What was saved is read without encoding/json, and as that would read it.
func TestReadSavedSnapshot(t *testing.T) {
	dir, err := filepath.Abs("testdata/cdi")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "cdi.json")
	_, err = NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, path)
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	requireSameSnapshot(t, data)
	r := snapshotReader{jsonread.New(data)}
	require.NotEmpty(t, r.snapshot().Devices)
	require.True(t, r.Ok())
}

func FuzzSavedSnapshot(f *testing.F) {
	for _, text := range []string{
		`{"kind":"k","dirs":["/a"],"files":[{"path":"/p","size":1,"changed":-2}],"commons":[null,{"env":["A=1"],"additionalGids":[1],"intelRdt":{"closID":"x"},"netDevices":[{"name":"n"}]}],"devices":{"a":{"common":1,"own":null}}}`,
		`{"devices":{"a":{"own":{"deviceNodes":[{"path":"/d","hostPath":"/h","type":"c","major":1,"minor":2,"fileMode":438,"permissions":"rw","uid":1,"gid":2}],"hooks":[{"hookName":"h","path":"/p","args":["a"],"env":["b"],"timeout":4}],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"],"type":"bind"}]}}}}`,
		`{"Kind":"k"}`, `null`, `[`, `{"commons":{}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { requireSameSnapshot(t, data) })
}

func requireSameSnapshot(t testing.TB, data []byte) {
	t.Helper()
	got := decodeSnapshot(data)
	var want savedSnapshot
	if json.Unmarshal(data, &want) != nil {
		require.Nil(t, got)
		return
	}
	require.Equal(t, &want, got)
}
