package nriplugin

import (
	"math/rand/v2"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/oci"
)

// What NRI would change is refused rather than changed.
func TestSupportedEdits(t *testing.T) {
	node := func(path, permissions string) *cdispec.ContainerEdits {
		return &cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: path, Type: "c", Permissions: permissions}}}
	}
	for _, test := range []struct {
		description string
		edits       *cdispec.ContainerEdits
		want        string
	}{
		{"nothing", &cdispec.ContainerEdits{}, ""},
		{"no permissions", node("/dev/nvidia0", ""), ""},
		{"read and write", node("/dev/nvidia0", "rw"), ""},
		{"and mknod", node("/dev/nvidia0", "rwm"), ""},
		{"a GPU to be read", node("/dev/nvidia0", "r"), `/dev/nvidia0 the permissions "r"`},
		{"a capability to be read", node("/dev/nvidia-caps/nvidia-cap3", "r"), ""},
		{"a path that only looks like one", node("/dev/nvidia-caps/../nvidia0", "r"), "rw only"},
		{"to be written", node("/dev/nvidia-caps/nvidia-cap3", "w"), "rw only"},
		{"no type", &cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidia0"}}}, "has no type"},
		{"network devices", &cdispec.ContainerEdits{NetDevices: []*cdispec.LinuxNetDevice{{}}}, "network devices"},
		{"Intel RDT", &cdispec.ContainerEdits{IntelRdt: &cdispec.IntelRdt{}}, "Intel RDT"},
	} {
		t.Run(test.description, func(t *testing.T) {
			err := checkSupported(test.edits)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

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

// The sums of sandboxes' sizes stay what the containers add up to, whatever comes.
func TestSizesOfKnownContainers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "c", "d"}
	name := func() string { return names[rnd.IntN(len(names))] }
	var all known
	for range 10000 {
		id := name()
		switch rnd.IntN(20) {
		case 0:
			list := map[string]Known{}
			for range rnd.IntN(4) {
				list[name()] = Known{pod: name(), size: rnd.IntN(3)}
			}
			all.replace(list)
		case 1, 2, 3, 4:
			all.remove(id)
		case 5, 6, 7, 8:
			all.ended(id)
		default:
			all.add(id, Known{pod: name(), size: rnd.IntN(3)})
		}
		left := 0
		for _, pod := range names {
			want := 0
			for other, c := range all.byID {
				if c.pod == pod && other != id {
					want += c.size
				}
			}
			require.Equal(t, want, all.sizeOfOthers(pod, id))
			if all.sizes[pod] > 0 {
				left++
			}
		}
		require.Len(t, all.sizes, left, "sandboxes that are gone are forgotten")
	}
}
