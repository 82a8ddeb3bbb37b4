package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// hostNodes is a host that has some device nodes.
func hostNodes(minors map[string]int64) NodeFiles {
	return NodeFiles{
		Paths: func(uuid string) ([]string, error) {
			switch uuid {
			case gpu0:
				return []string{"/dev/nvidia0"}, nil
			case gpu1:
				return []string{"/dev/nvidia1"}, nil
			case mig0:
				return []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"}, nil
			}
			return nil, errors.New("no such GPU")
		},
		stat: func(path string) (nodeInfo, error) {
			minor, ok := minors[path]
			if !ok {
				return nodeInfo{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
			}
			return nodeInfo{kind: "c", major: 195, minor: minor, mode: 0o666}, nil
		},
	}
}

func TestNodeFiles(t *testing.T) {
	whole := map[string]int64{
		"/dev/nvidiactl": 255, "/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1, "/dev/nvidia-modeset": 254,
		"/dev/nvidia0": 0, "/dev/nvidia1": 1, "/dev/nvidia-caps/nvidia-cap3": 3,
	}
	few := map[string]int64{"/dev/nvidiactl": 255, "/dev/nvidia1": 1}
	for _, test := range []struct {
		description string
		host        map[string]int64
		uuids       []string
		want        []string
		err         string
	}{
		{"one GPU", whole, []string{gpu1}, []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia1"}, ""},
		{"what isn't loaded is left out", few, []string{gpu1}, []string{"/dev/nvidiactl", "/dev/nvidia1"}, ""},
		{"a node that two share comes once", whole, []string{gpu0, mig0}, []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"}, ""},
		{"the GPU's node is missing", few, []string{gpu0}, nil, "/dev/nvidia0"},
		{"the driver isn't there", map[string]int64{"/dev/nvidia1": 1}, []string{gpu1}, nil, "/dev/nvidiactl"},
		{"an unknown GPU", whole, []string{gpuX}, nil, gpuX + ": no such GPU"},
	} {
		t.Run(test.description, func(t *testing.T) {
			edits, err := hostNodes(test.host).DeviceEdits(test.uuids)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			var paths []string
			for _, d := range edits.DeviceNodes {
				paths = append(paths, d.Path)
				assert.Equal(t, fmt.Sprintf("c 195:%d", test.host[d.Path]), fmt.Sprintf("%s %d:%d", d.Type, d.Major, d.Minor))
				assert.Equal(t, "rw", d.Permissions)
			}
			assert.Equal(t, test.want, paths)
		})
	}
}

// Only NVIDIA's runtime needs it: a CDI spec names the nodes itself.
func TestEditsPassDeviceNodes(t *testing.T) {
	settings := testSettings()
	settings.Nodes = hostNodes(map[string]int64{"/dev/nvidiactl": 255, "/dev/nvidia0": 0})
	c := factsOf(testSpec(t, "containerd"), "nvidia")

	settings.Injection = InjectEnvvar
	result, err := Edits(one(8000, 30), settings, c, nil)
	require.NoError(t, err)
	require.Len(t, result.Edits.DeviceNodes, 2)
	assert.Equal(t, "/dev/nvidia0", result.Edits.DeviceNodes[1].Path)
	assert.Contains(t, result.Edits.Env, api.EnvVisibleDevices+"="+gpu0, "NVIDIA's runtime still injects the rest")

	_, err = Edits([]grant.Share{{UUID: gpuX, MemoryMiB: 1}}, settings, c, nil)
	require.ErrorContains(t, err, gpuX)

	settings.Injection = InjectCDI
	byCDI, err := Edits(one(8000, 30), settings, c, testRegistry(t))
	require.NoError(t, err)
	settings.Nodes = nil
	without, err := Edits(one(8000, 30), settings, c, testRegistry(t))
	require.NoError(t, err)
	assert.Equal(t, without, byCDI)
}
