package oci

import (
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestVoid(t *testing.T) {
	tests := []struct {
		description string
		env         []string
		want        bool
	}{
		{"nothing asked", []string{"PATH=/bin"}, false},
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
		{"an old CUDA image that says no", []string{"CUDA_VERSION=8.0.61", "NVIDIA_VISIBLE_DEVICES="}, false},
		{"a new CUDA image", []string{"CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			c := Container{Env: tt.env}
			assert.Equal(t, tt.want, AsksForGPU(c))
			if !tt.want {
				assert.Nil(t, Void(c))
				return
			}
			assert.Equal(t, &cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, Void(c))
		})
	}
}

func TestHoldsGPU(t *testing.T) {
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
	annotated := func(key, value string) Container {
		return Container{Annotations: map[string]string{key: value}}
	}
	tests := []struct {
		description string
		container   Container
		reason      string // empty: holds none
	}{
		{"nothing", Container{}, ""},
		{"a card", node("/dev/nvidia0", "c", 195, 0), "/dev/nvidia0"},
		{"a card of two digits", node("/dev/nvidia15", "c", 195, 15), "/dev/nvidia15"},
		{"the control node", node("/dev/nvidiactl", "c", 195, 255), "/dev/nvidiactl"},
		{"uvm, whose major is dynamic", node("/dev/nvidia-uvm", "c", 510, 0), "/dev/nvidia-uvm"},
		{"a MIG capability", node("/dev/nvidia-caps/nvidia-cap1", "c", 236, 1), "nvidia-cap1"},
		{"a card in disguise", node("/dev/xvda", "c", 195, 3), "/dev/xvda"},
		{"a path that isn't clean", node("/dev//nvidia0", "c", 1, 1), "/dev//nvidia0"},
		{"a block device of that major", node("/dev/sda", "b", 195, 0), ""},
		{"fuse", node("/dev/fuse", "c", 10, 229), ""},
		{"a render node runs no CUDA", node("/dev/dri/renderD128", "c", 226, 128), ""},
		{"a privileged container has all nodes", privileged(node("/dev/nvidia0", "c", 195, 0)), ""},
		{"a volume of a card", mount("/dev/nvidia0", "/dev/nvidia0"), "/dev/nvidia0"},
		{"a volume of a card elsewhere", mount("/dev/nvidia0", "/mnt/gpu"), "/mnt/gpu"},
		{"a volume onto a card's name", mount("/mnt/x", "/dev/nvidia0"), "/dev/nvidia0"},
		{"a volume of the capabilities", mount("/dev/nvidia-caps", "/dev/nvidia-caps"), "/dev/nvidia-caps"},
		{"a volume of /dev gives no access", mount("/dev", "/host/dev"), ""},
		{"a privileged container may mount a card", privileged(mount("/dev/nvidia0", "/dev/nvidia0")), ""},
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
			reason, holds := HoldsGPU(tt.container)
			assert.Equal(t, tt.reason != "", holds, reason)
			assert.Contains(t, reason, tt.reason)
		})
	}
}

func TestContainerOf(t *testing.T) {
	c := ContainerOf("x", testSpec(t, "privileged"))
	assert.True(t, c.Privileged)
	assert.Len(t, c.Devices, 5)
	assert.NotEmpty(t, c.Env)
	assert.NotEmpty(t, c.Mounts)
	assert.False(t, ContainerOf("x", testSpec(t, "containerd")).Privileged)
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
