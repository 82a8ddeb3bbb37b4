package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/internal/jsonread"
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

// A member that CDI's edits get has to get into what reads them.
func TestSnapshotHasNoMore(t *testing.T) {
	for of, members := range map[reflect.Type]int{
		reflect.TypeFor[savedSnapshot](): 5, reflect.TypeFor[savedFile](): 3, reflect.TypeFor[savedDevice](): 2,
		reflect.TypeFor[cdispec.ContainerEdits](): 7, reflect.TypeFor[cdispec.DeviceNode](): 9,
		reflect.TypeFor[cdispec.Hook](): 5, reflect.TypeFor[cdispec.Mount](): 4,
	} {
		require.Equal(t, members, of.NumField(), of.String())
	}
}
