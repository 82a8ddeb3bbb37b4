package slice

import (
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// A slice's own nodes and their rules are its container's. A rule for more is not.
func TestCheckSpecDeviceRules(t *testing.T) {
	s := Slice{Nodes: []Node{{"/dev/nvidia0", 195, 0}, {"/dev/nvidiactl", 195, 255}}}
	rule := func(kind string, major, minor int64) rspec.LinuxDeviceCgroup {
		return rspec.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: "rwm"}
	}
	c := oci.Container{
		Devices:     []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}, {Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}},
		DeviceRules: []rspec.LinuxDeviceCgroup{rule("c", 195, 0), rule("c", 195, 255)},
	}
	require.NoError(t, checkSpec(s, c))
	for _, more := range []rspec.LinuxDeviceCgroup{rule("a", -1, -1), rule("c", -1, -1), rule("c", 195, -1), rule("c", 195, 1)} {
		with := c
		with.DeviceRules = append(with.DeviceRules[:2:2], more)
		require.ErrorContains(t, checkSpec(s, with), "beside the slice")
	}
}
