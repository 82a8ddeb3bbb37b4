package ociruntime

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
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
