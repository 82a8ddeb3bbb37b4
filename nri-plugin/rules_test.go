package nriplugin

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// resources are those with one rule more than an engine's own.
func resources(rule *api.LinuxDeviceCgroup) *api.LinuxResources {
	return &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Access: "rwm"}, rule}}
}

// Rules of the device cgroup count as they do with the wrapper; one that allows everything
// is a privileged container's, as no pod's author can write one.
func TestFactsOfDeviceRules(t *testing.T) {
	driver := &api.LinuxDeviceCgroup{Allow: true, Type: "c", Major: api.Int64(195), Access: "rwm"}
	c := containerOf(nil, &api.Container{Linux: &api.LinuxContainer{Resources: resources(driver)}})
	require.False(t, c.Privileged)
	reason, holds := oci.HasGPU(c)
	require.True(t, holds)
	require.Contains(t, reason, `"c 195:* rwm"`)

	all := &api.LinuxDeviceCgroup{Allow: true, Access: "rwm"}
	c = containerOf(nil, &api.Container{Linux: &api.LinuxContainer{Resources: resources(all)}})
	require.True(t, c.Privileged)
	reason, holds = oci.HasGPU(c)
	require.False(t, holds, reason)
}

// Another plugin's rule goes into the spec as it is.
func TestForeignDeviceRule(t *testing.T) {
	for _, rule := range []*api.LinuxDeviceCgroup{
		{Allow: true, Type: "c", Major: api.Int64(195), Access: "rwm"}, {Allow: true, Type: "a", Access: "rwm"},
	} {
		errs := foreign(nil, &api.ContainerAdjustment{Linux: &api.LinuxContainerAdjustment{Resources: resources(rule)}})
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], "which was not granted")
	}
}
