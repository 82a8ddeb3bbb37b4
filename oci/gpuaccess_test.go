package oci

import (
	"slices"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestVoid(t *testing.T) {
	tests := []struct {
		description string
		env         []string
		want        bool
	}{
		{"no request", []string{"PATH=/bin"}, false},
		{"no environment", nil, false},
		{"all, from an image", []string{"NVIDIA_VISIBLE_DEVICES=all"}, true},
		{"an index", []string{"NVIDIA_VISIBLE_DEVICES=0"}, true},
		{"another's UUID", []string{"NVIDIA_VISIBLE_DEVICES=" + gpu0}, true},
		{"none still injects the driver", []string{"NVIDIA_VISIBLE_DEVICES=none"}, true},
		{"void already", []string{"NVIDIA_VISIBLE_DEVICES=void"}, false},
		{"empty", []string{"NVIDIA_VISIBLE_DEVICES="}, false},
		{"void, and then all", []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, true},
		{"all, and then void", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"}, true},
		{"a name without a value", []string{"NVIDIA_VISIBLE_DEVICES"}, false},
		{"an old CUDA image, which NVIDIA's runtime reads as all", []string{"CUDA_VERSION=8.0.61"}, true},
		{"an old CUDA image with an empty variable", []string{"CUDA_VERSION=8.0.61", "NVIDIA_VISIBLE_DEVICES="}, false},
		{"a new CUDA image", []string{"CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			c := Container{Env: tt.env}
			assert.Equal(t, tt.want, RequestsGPU(c))
			if !tt.want {
				assert.Nil(t, Void(c))
				return
			}
			assert.Equal(t, &cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, Void(c))
		})
	}
}

func TestHasGPU(t *testing.T) {
	node := func(path, kind string, major, minor int64) Container {
		return Container{Devices: []rspec.LinuxDevice{{Path: path, Type: kind, Major: major, Minor: minor}}}
	}
	mount := func(source, destination string) Container {
		return Container{Mounts: []rspec.Mount{bind(source, destination)}}
	}
	privileged := func(c Container) Container {
		c.Privileged = true
		return c
	}
	rules := func(rules ...rspec.LinuxDeviceCgroup) Container {
		return Container{DeviceRules: rules, Majors: DriverMajors{Caps: []int64{236}, Other: []int64{510}}}
	}
	annotated := func(key, value string) Container {
		return Container{Annotations: map[string]string{key: value}}
	}
	tests := []struct {
		description string
		container   Container
		reason      string // empty: none
	}{
		{"nothing", Container{}, ""},
		{"a GPU", node("/dev/nvidia0", "c", 195, 0), "/dev/nvidia0"},
		{"a GPU of two digits", node("/dev/nvidia15", "c", 195, 15), "/dev/nvidia15"},
		{"the control node", node("/dev/nvidiactl", "c", 195, 255), "/dev/nvidiactl"},
		{"uvm, with a dynamic major", node("/dev/nvidia-uvm", "c", 510, 0), "/dev/nvidia-uvm"},
		{"a MIG capability", node("/dev/nvidia-caps/nvidia-cap1", "c", 236, 1), "nvidia-cap1"},
		{"a GPU in disguise", node("/dev/xvda", "c", 195, 3), "/dev/xvda"},
		{"a path that isn't clean", node("/dev//nvidia0", "c", 1, 1), "/dev//nvidia0"},
		{"a block device of that major", node("/dev/sda", "b", 195, 0), ""},
		{"fuse", node("/dev/fuse", "c", 10, 229), ""},
		{"a render node runs no CUDA", node("/dev/dri/renderD128", "c", 226, 128), ""},
		{"a privileged container has all nodes", privileged(node("/dev/nvidia0", "c", 195, 0)), ""},
		{"the driver's number of today, in disguise", func() Container {
			c := node("/dev/x", "c", 510, 0)
			c.Majors.Other = []int64{510}
			return c
		}(), "/dev/x"},
		{"rules as an engine writes them", rules(rule(false, "a", -1, -1, "rwm"), rule(true, "c", 1, 3, "rwm"), rule(true, "c", -1, -1, "m"), rule(true, "b", -1, -1, "rwm")), ""},
		{"a rule for everything", rules(rule(false, "", -1, -1, "rwm"), rule(true, "a", -1, -1, "rwm")), `"a *:* rwm"`},
		{"a rule for everything that kernels don't read to its end", rules(rule(true, "a", 10, 200, "m")), `"a 10:200 m"`},
		{"a rule for character devices", rules(rule(true, "c", -1, -1, "rw")), `"c *:* rw"`},
		{"a rule for the driver's", rules(rule(true, "c", 195, -1, "rwm")), `"c 195:* rwm"`},
		{"a rule for a GPU", rules(rule(true, "c", 195, 2, "r")), `"c 195:2 r"`},
		{"a rule for the control node", rules(rule(true, "c", 195, 255, "rwm")), `"c 195:255 rwm"`},
		{"a rule for uvm", rules(rule(true, "c", 510, -1, "rwm")), `"c 510:* rwm"`},
		{"a rule for MIG devices", rules(rule(true, "c", 236, 12, "rwm")), `"c 236:12 rwm"`},
		{"a rule for another's", rules(rule(true, "c", 10, 200, "rwm")), ""},
		{"a rule that is taken back with all", rules(rule(true, "a", -1, -1, "rwm"), rule(false, "a", -1, -1, "rwm")), ""},
		{"a rule that is taken back in part", rules(rule(true, "c", -1, -1, "rwm"), rule(false, "c", 195, -1, "rwm")), `"c *:* rwm"`},
		{"a rule for everything of a privileged container", privileged(rules(rule(true, "a", -1, -1, "rwm"))), ""},
		{"a volume of a GPU", mount("/dev/nvidia0", "/dev/nvidia0"), "/dev/nvidia0"},
		{"a volume of a GPU elsewhere", mount("/dev/nvidia0", "/mnt/gpu"), "/mnt/gpu"},
		{"a volume onto a GPU's name", mount("/mnt/x", "/dev/nvidia0"), "/dev/nvidia0"},
		{"a volume of the capabilities", mount("/dev/nvidia-caps", "/dev/nvidia-caps"), "/dev/nvidia-caps"},
		{"a volume of /dev gives no access", mount("/dev", "/host/dev"), ""},
		{"a privileged container may mount a GPU", privileged(mount("/dev/nvidia0", "/dev/nvidia0")), ""},
		{"a request by mount", mount("/dev/null", "/var/run/nvidia-container-devices/all"), "nvidia-container-devices/all"},
		{"the same by its other path", mount("/dev/null", "/run/nvidia-container-devices/GPU-1"), "nvidia-container-devices/GPU-1"},
		{"the same by a longer path", mount("/dev/null", "/var/run/../run/nvidia-container-devices/cdi/nvidia.com/gpu/0"), "cdi"},
		{"a request by mount of a privileged container", privileged(mount("/dev/null", "/var/run/nvidia-container-devices/all")), "nvidia-container-devices/all"},
		{"a volume of /var/run is none", mount("/var/run", "/var/run"), ""},
		{"a CDI name", Container{CDIDevices: []string{"nvidia.com/gpu=0"}}, "nvidia.com/gpu=0"},
		{"a CDI name of NVIDIA's device plugin", Container{CDIDevices: []string{"k8s.device-plugin.nvidia.com/gpu=" + gpu0}}, gpu0},
		{"another vendor's CDI name", Container{CDIDevices: []string{"vendor.com/nic=0", "notnvidia.com/gpu=0"}}, ""},
		{"a CDI annotation", annotated("cdi.k8s.io/nvidia-device-plugin_x", "nvidia.com/gpu=all"), "nvidia.com/gpu=all"},
		{"a CDI annotation of NVIDIA's NRI plugin", annotated("nvidia.cdi.k8s.io/container.main", "management.nvidia.com/gpu=all"), "management.nvidia.com/gpu=all"},
		{"another annotation", annotated("note", "nvidia.com/gpu=all"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			reason, holds := HasGPU(tt.container)
			assert.Equal(t, tt.reason != "", holds, reason)
			assert.Contains(t, reason, tt.reason)
		})
	}
}

// rule is one of a device cgroup; -1 is any number.
func rule(allow bool, kind string, major, minor int64, access string) rspec.LinuxDeviceCgroup {
	return rspec.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: &major, Minor: &minor, Access: access}
}

// Granted nodes are ignored; nodes beyond them are found.
func TestHasMoreGPUs(t *testing.T) {
	granted := []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}, {Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}}
	c := Container{Devices: granted, DeviceRules: []rspec.LinuxDeviceCgroup{rule(true, "c", 195, 0, "rwm"), rule(true, "c", 195, 255, "rwm")}}
	reason, holds := HasMoreGPUs(c, granted)
	assert.False(t, holds, reason)

	more := c
	more.DeviceRules = append(more.DeviceRules, rule(true, "c", 195, 1, "rwm"))
	reason, holds = HasMoreGPUs(more, granted)
	assert.True(t, holds)
	assert.Contains(t, reason, `"c 195:1 rwm"`)

	more = c
	more.Devices = append(more.Devices, rspec.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 1})
	reason, holds = HasMoreGPUs(more, granted)
	assert.True(t, holds)
	assert.Contains(t, reason, "/dev/nvidia0")
}

func TestMountsDriver(t *testing.T) {
	for destination, want := range map[string]bool{
		"/usr/lib/x86_64-linux-gnu/libcuda.so.570.1": true, "/x/../usr/lib64/libnvidia-ml.so.1": true,
		"/usr/lib": false, "/models/libcuda.txt": false,
	} {
		reason, mounts := MountsDriver(Container{Mounts: []rspec.Mount{bind("/x", destination)}})
		assert.Equal(t, want, mounts, "%s: %s", destination, reason)
	}
}

func TestDriverMajors(t *testing.T) {
	text := "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n237 nvidia-caps-imex-channels\n510 nvidia-uvm\n\nBlock devices:\n 511 nvidia-x\n"
	assert.Equal(t, DriverMajors{Caps: []int64{236, 237}, Other: []int64{510}}, driverMajors(text))
}

func TestContainerOf(t *testing.T) {
	c := ContainerOf("x", testSpec(t, "privileged"))
	assert.True(t, c.Privileged)
	assert.Len(t, c.Devices, 5)
	assert.NotEmpty(t, c.Env)
	assert.NotEmpty(t, c.Mounts)
	assert.False(t, ContainerOf("x", testSpec(t, "containerd")).Privileged)
	unprivileged := testSpec(t, "privileged") // docker run --device-cgroup-rule 'a *:* rwm'
	unprivileged.Process.Capabilities.Bounding = []string{"CAP_MKNOD"}
	assert.False(t, ContainerOf("x", unprivileged).Privileged)
	assert.Equal(t, Container{ID: "x"}, ContainerOf("x", &rspec.Spec{}))
}

func TestAllowsAllDevices(t *testing.T) {
	any64, one64 := int64(-1), int64(1)
	deny := rspec.LinuxDeviceCgroup{Access: "rwm"}
	tests := []struct {
		description string
		rules       []rspec.LinuxDeviceCgroup
		want        bool
	}{
		{"no rules", nil, false},
		{"all denied", []rspec.LinuxDeviceCgroup{deny}, false},
		{"all allowed after all denied", []rspec.LinuxDeviceCgroup{deny, {Allow: true, Access: "rwm"}}, true},
		{"all allowed, in full", []rspec.LinuxDeviceCgroup{{Allow: true, Type: "a", Major: &any64, Minor: &any64, Access: "mrw"}}, true},
		{"all denied after all allowed", []rspec.LinuxDeviceCgroup{{Allow: true}, deny}, false},
		{"every character device", []rspec.LinuxDeviceCgroup{{Allow: true, Type: "c", Access: "rwm"}}, false},
		{"one major", []rspec.LinuxDeviceCgroup{{Allow: true, Major: &one64, Access: "rwm"}}, false},
		{"to make nodes only", []rspec.LinuxDeviceCgroup{{Allow: true, Access: "m"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			assert.Equal(t, tt.want, AllowsAllDevices(tt.rules))
		})
	}
}

// The driver's numbers are read where they make a difference, whatever they are.
func TestNeedsMajors(t *testing.T) {
	for major := int64(-1); major < 512; major++ {
		minor := int64(3)
		for _, c := range []Container{
			{Devices: []rspec.LinuxDevice{{Path: "/dev/x", Type: "c", Major: major, Minor: minor}}},
			{DeviceRules: []rspec.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}}},
		} {
			_, without := HasGPU(c)
			for given := range int64(512) { // what the driver may have been given
				if slices.Contains(builtinMajors, given) {
					continue
				}
				c.Majors = DriverMajors{Caps: []int64{given}, Other: []int64{given}}
				if _, with := HasGPU(c); with != without {
					require.True(t, needsMajors(c), "%+v", c)
				}
			}
		}
	}
	require.False(t, needsMajors(Container{}))
	one := int64(1)
	require.False(t, needsMajors(Container{DeviceRules: []rspec.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "c", Major: &one, Access: "rwm"}}}))
}
