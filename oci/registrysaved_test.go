package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSavedRegistry(t *testing.T) {
	dir, saved := t.TempDir(), filepath.Join(t.TempDir(), "cdi.json")
	spec, err := os.ReadFile("testdata/cdi/nvidia.yaml")
	require.NoError(t, err)
	path := filepath.Join(dir, "nvidia.yaml")
	require.NoError(t, os.WriteFile(path, spec, 0o644))
	want, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)

	open := func() *Registry {
		t.Helper()
		r, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
		require.NoError(t, err)
		require.Equal(t, want.Devices(), r.Devices())
		for _, name := range want.Devices() {
			a, errA := want.DeviceEdits([]string{name})
			b, errB := r.DeviceEdits([]string{name})
			require.Equal(t, errA, errB)
			require.Equal(t, a, b, name)
		}
		return r
	}
	require.NotNil(t, open().cache, "read")
	require.Nil(t, open().cache, "known from the file")
	whole, err := os.ReadFile(saved)
	require.NoError(t, err)
	for _, damage := range []string{"{", `{"kind":"nvidia.com/gpu"}`, "", strings.Replace(string(whole), `"Common":{`, `"Other":{`, 1)} {
		require.NoError(t, os.WriteFile(saved, []byte(damage), 0o600))
		require.NotNil(t, open().cache, "damaged file: %.40q", damage)
	}
	other, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}, Kind: "nvidia.com/gds"}, saved)
	require.NoError(t, err)
	require.Empty(t, other.Devices(), "of another kind")
	require.NotNil(t, open().cache)

	// A spec that changes is read, by a new registry and by one that goes on.
	r := open()
	require.NoError(t, os.Remove(path))
	r.checked = time.Time{}
	r.Refresh()
	require.Empty(t, r.Devices())
	gone, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
	require.NoError(t, err)
	require.Empty(t, gone.Devices())

	// The error of an unusable spec is returned each time.
	require.NoError(t, os.WriteFile(path, []byte("cdiVersion: 9"), 0o644))
	for range 2 {
		broken, err := NewSavedRegistry(RegistryConfig{Dirs: []string{dir}}, saved)
		require.NoError(t, err)
		require.Error(t, broken.Err())
	}
}
