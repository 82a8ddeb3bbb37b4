package nriplugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
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
