package cdispec

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

func specOf(kind string, edits cdispec.ContainerEdits) *cdispec.Spec {
	return &cdispec.Spec{Kind: kind, Devices: []cdispec.Device{{Name: "small", ContainerEdits: edits}}}
}

func TestWrite(t *testing.T) {
	for _, test := range []struct {
		name    string
		edits   cdispec.ContainerEdits
		version string
	}{
		{"only variables", cdispec.ContainerEdits{Env: []string{"A=b"}}, "0.3.0"},
		{"a mount's type", cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/a", ContainerPath: "/a", Type: "bind"}}}, "0.4.0"},
		{"a node from elsewhere", cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/a", HostPath: "/b"}}}, "0.5.0"},
		{"groups", cdispec.ContainerEdits{AdditionalGIDs: []uint32{44}}, "0.7.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cdi")
			changed, err := Write(dir, "x.yaml", specOf(api.CDIKindSlice, test.edits))
			require.NoError(t, err)
			require.True(t, changed)
			spec, err := cdi.ReadSpec(filepath.Join(dir, "x.yaml"), 0)
			require.NoError(t, err)
			require.Equal(t, test.version, spec.Version, "the lowest sufficient version")
			info, err := os.Stat(filepath.Join(dir, "x.yaml"))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o644), info.Mode())

			changed, err = Write(dir, "x.yaml", specOf(api.CDIKindSlice, test.edits))
			require.NoError(t, err)
			require.False(t, changed)
		})
	}
}

func TestWriteOverWhatIsThere(t *testing.T) {
	want := specOf(api.CDIKindSlice, cdispec.ContainerEdits{Env: []string{"A=b"}})
	for _, test := range []struct {
		name, content string
		mode          os.FileMode
	}{
		{"half a file", "cdiVersion: 0.3.0\nkind: gpusl", 0o644},
		{"another spec", "cdiVersion: 0.3.0\nkind: gpuslice.io/slice\ndevices: [{name: small, containerEdits: {env: [A=c]}}]\n", 0o644},
		{"a newer version than it needs", "cdiVersion: 0.7.0\nkind: gpuslice.io/slice\ndevices: [{name: small, containerEdits: {env: [A=b]}}]\n", 0o644},
		{"a file that only root can read", "cdiVersion: 0.3.0\nkind: gpuslice.io/slice\ndevices: [{name: small, containerEdits: {env: [A=b]}}]\n", 0o600},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(test.content), test.mode))
			changed, err := Write(dir, "x.yaml", want)
			require.NoError(t, err)
			require.True(t, changed)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1, "nothing is left beside it")
		})
	}
}

func TestWriteRefusesWhatIsNoSpec(t *testing.T) {
	dir := t.TempDir()
	_, err := Write(dir, "x.yaml", specOf("slice", cdispec.ContainerEdits{Env: []string{"A=b"}}))
	require.Error(t, err)
	_, err = Write(dir, "x.yaml", specOf(api.CDIKindSlice, cdispec.ContainerEdits{Env: []string{"A"}}))
	require.Error(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestDriver(t *testing.T) {
	generate := func() (*cdispec.Spec, error) {
		return specOf(api.CDIKindDriver, cdispec.ContainerEdits{Env: []string{"A=b"}}), nil
	}
	never := func() (*cdispec.Spec, error) { return nil, errors.New("not to be called") }
	root := t.TempDir()
	etc, run := filepath.Join(root, "etc"), filepath.Join(root, "run")
	require.NoError(t, os.MkdirAll(etc, 0o755))
	link := filepath.Join(root, "var-run")
	require.NoError(t, os.Symlink(run, link))

	out, err := Driver([]string{etc, link}, run, false, generate)
	require.NoError(t, err)
	require.True(t, out.Changed)
	require.FileExists(t, filepath.Join(run, DriverFile))

	out, err = Driver([]string{etc, link}, run, false, generate)
	require.NoError(t, err)
	require.False(t, out.Changed, "our own file under another name of its directory is no other's")
	require.Empty(t, out.Others)

	theirs := filepath.Join(etc, "nvidia.yaml")
	require.NoError(t, os.WriteFile(theirs, []byte("cdiVersion: 0.3.0\nkind: nvidia.com/gpu\ndevices: [{name: a, containerEdits: {env: [A=b]}}]\n"), 0o644))
	out, err = Driver([]string{etc, link}, run, false, never)
	require.NoError(t, err)
	require.True(t, out.Changed)
	require.Equal(t, []string{theirs}, out.Others)
	require.NoFileExists(t, filepath.Join(run, DriverFile))

	// Another class and an invalid file are ignored.
	require.NoError(t, os.WriteFile(theirs, []byte("cdiVersion: 0.3.0\nkind: nvidia.com/gds\ndevices: [{name: a, containerEdits: {env: [A=b]}}]\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(etc, "broken.yaml"), []byte("kind: nvidia.com/gpu\n"), 0o644))
	out, err = Driver([]string{etc, link}, run, false, generate)
	require.NoError(t, err)
	require.Empty(t, out.Others)

	_, err = Driver([]string{etc}, run, false, never)
	require.ErrorContains(t, err, "not to be called")
	require.FileExists(t, filepath.Join(run, DriverFile), "an error of the driver removes nothing")
}
