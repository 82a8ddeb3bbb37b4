package oci

import (
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestApplyToLittle(t *testing.T) {
	require.Error(t, Apply(nil, &cdispec.ContainerEdits{}))

	spec := testSpec(t, "containerd")
	want := testSpec(t, "containerd")
	require.NoError(t, Apply(spec, nil))
	assert.Equal(t, want, spec)

	result, err := Edits(one(8000, 30), testSettings(), factsOf(spec, ""), testRegistry(t))
	require.NoError(t, err)
	empty := &rspec.Spec{Version: "1.2.0"}
	require.NoError(t, Apply(empty, result.Edits), "a spec without any section")
	assert.Contains(t, empty.Process.Env, "CUDA_DEVICE_MEMORY_LIMIT_0=8000m")
	assert.Len(t, empty.Mounts, 8)
}

func TestApplyLeavesTheSpecOnErrors(t *testing.T) {
	tests := []struct {
		description string
		edits       *cdispec.ContainerEdits
	}{
		{"not valid CDI", &cdispec.ContainerEdits{Env: []string{"A=1", "no value"}}},
		{"a device that the host hasn't", &cdispec.ContainerEdits{Env: []string{"A=1"}, DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/none-such"}}}},
		{"an unknown hook", &cdispec.ContainerEdits{Env: []string{"A=1"}, Hooks: []*cdispec.Hook{{HookName: "beforeAll", Path: "/x"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			spec := testSpec(t, "containerd")
			require.Error(t, Apply(spec, tt.edits))
			assert.Equal(t, testSpec(t, "containerd"), spec)
		})
	}
}

func TestApplyLeavesTheEdits(t *testing.T) {
	edits := &cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/null"}}}
	require.NoError(t, Apply(testSpec(t, "containerd"), edits))
	assert.Equal(t, &cdispec.DeviceNode{Path: "/dev/null"}, edits.DeviceNodes[0], "CDI fills nodes in, but not the caller's")
}

func TestApplyHooksOnce(t *testing.T) {
	var hooks []*cdispec.Hook
	for _, name := range []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"} {
		hooks = append(hooks, &cdispec.Hook{HookName: name, Path: "/bin/hook", Args: []string{"hook", name}, Env: []string{"A=1"}})
	}
	spec := testSpec(t, "containerd")
	for range 3 {
		require.NoError(t, Apply(spec, &cdispec.ContainerEdits{Hooks: hooks}))
	}
	for _, h := range hooks {
		assert.Len(t, *HookLists(spec.Hooks)[h.HookName], 1, h.HookName)
	}
}

// A rule that the spec has already, and denied after, has to come again.
func TestApplyCgroupRulesCount(t *testing.T) {
	spec := testSpec(t, "containerd")
	one64, three64 := int64(1), int64(3)
	null := rspec.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &one64, Minor: &three64, Access: "rwm"}
	deny := rspec.LinuxDeviceCgroup{Access: "rwm"}
	spec.Linux.Resources.Devices = []rspec.LinuxDeviceCgroup{null, deny}
	require.NoError(t, Apply(spec, &cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}}}))
	assert.Equal(t, []rspec.LinuxDeviceCgroup{deny, null}, spec.Linux.Resources.Devices)
}

func TestMergeTakesEverythingOnce(t *testing.T) {
	timeout, gid := 5, uint32(44)
	a := &cdispec.ContainerEdits{
		Env:            []string{"A=1", "B=1"},
		DeviceNodes:    []*cdispec.DeviceNode{{Path: "/dev/x", Permissions: "r"}, {Path: "/dev/y", GID: &gid}, nil},
		Mounts:         []*cdispec.Mount{{HostPath: "/1", ContainerPath: "/a/../b", Options: []string{"ro"}}},
		NetDevices:     []*cdispec.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "a"}},
		Hooks:          []*cdispec.Hook{{HookName: "poststop", Path: "/h", Timeout: &timeout}},
		AdditionalGIDs: []uint32{44, 44},
		IntelRdt:       &cdispec.IntelRdt{ClosID: "a", Schemata: []string{"L3:0=1"}},
	}
	b := &cdispec.ContainerEdits{
		Env:            []string{"B=2", "C=2"},
		DeviceNodes:    []*cdispec.DeviceNode{{Path: "/dev//x", Permissions: "rw"}},
		Mounts:         []*cdispec.Mount{{HostPath: "/2", ContainerPath: "/b"}},
		NetDevices:     []*cdispec.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "b"}},
		Hooks:          []*cdispec.Hook{{HookName: "poststop", Path: "/h"}},
		AdditionalGIDs: []uint32{44, 45},
	}
	merged := Merge(a, nil, b)
	assert.Equal(t, &cdispec.ContainerEdits{
		Env:            []string{"A=1", "B=2", "C=2"},
		DeviceNodes:    []*cdispec.DeviceNode{{Path: "/dev//x", Permissions: "rw"}, {Path: "/dev/y", GID: &gid}},
		Mounts:         []*cdispec.Mount{{HostPath: "/2", ContainerPath: "/b"}},
		NetDevices:     []*cdispec.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "b"}},
		Hooks:          []*cdispec.Hook{{HookName: "poststop", Path: "/h", Timeout: &timeout}},
		AdditionalGIDs: []uint32{44, 45},
		IntelRdt:       &cdispec.IntelRdt{ClosID: "a", Schemata: []string{"L3:0=1"}},
	}, merged)

	merged.DeviceNodes[1].Path = "/changed"
	*merged.DeviceNodes[1].GID = 7
	merged.IntelRdt.Schemata[0] = "changed"
	assert.Equal(t, "/dev/y", a.DeviceNodes[1].Path, "a copy shares nothing")
	assert.Equal(t, uint32(44), gid)
	assert.Equal(t, "L3:0=1", a.IntelRdt.Schemata[0])
}

// Nothing of the spec that was given changes by what is done to a copy of it.
func TestCloneSpecSharesNothingThatEditsChange(t *testing.T) {
	spec, want := testSpec(t, "containerd"), testSpec(t, "containerd")
	copied := cloneSpec(spec)
	require.Equal(t, want, copied)
	require.NoError(t, (&cdi.ContainerEdits{ContainerEdits: &cdispec.ContainerEdits{
		Env:            []string{"PATH=/changed", "NEW=1"},
		DeviceNodes:    []*cdispec.DeviceNode{{Path: "/dev/null"}},
		Mounts:         []*cdispec.Mount{{HostPath: "/x", ContainerPath: "/proc"}, {HostPath: "/a", ContainerPath: "/a"}},
		NetDevices:     []*cdispec.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "a"}},
		IntelRdt:       &cdispec.IntelRdt{ClosID: "a"},
		AdditionalGIDs: []uint32{44},
		Hooks:          []*cdispec.Hook{{HookName: "poststop", Path: "/h"}, {HookName: "prestart", Path: "/h"}},
	}}).Apply(copied))
	copied.Annotations["new"] = "1"
	removeReplaced(copied, &cdispec.ContainerEdits{Env: []string{"PATH=/x"}, Mounts: []*cdispec.Mount{{ContainerPath: "/dev"}}})
	limiterMountsLast(copied)
	uniqueRules(copied)
	require.NotEqual(t, want, copied)
	require.Equal(t, want, spec)
}
