package node_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// two GPUs, the second one in MIG mode where instances are given: by profile, GPU
// instance.
func machine(instances ...nvidia.MIGDevice) nvidia.Node {
	n := nvidia.Node{GPUs: []nvidia.GPU{{UUID: "GPU-1", MemoryMiB: 1000}, {UUID: "GPU-2", Index: 1, MemoryMiB: 333}}}
	for _, d := range instances {
		d.GPU = "GPU-2"
		n.GPUs[1].MIGEnabled, n.GPUs[1].MIG = true, append(n.GPUs[1].MIG, d)
	}
	return n
}

func TestSharing(t *testing.T) {
	small := nvidia.MIGDevice{UUID: "MIG-1", Profile: "1g.5gb", MemoryMiB: 100, GPUInstance: 7}
	half := nvidia.MIGDevice{UUID: "MIG-2", Profile: "1c.2g.10gb", MemoryMiB: 200, GPUInstance: 3}
	other := nvidia.MIGDevice{UUID: "MIG-3", Profile: "1c.2g.10gb", MemoryMiB: 200, GPUInstance: 3, ComputeInstance: 1}
	first := node.Device{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1000, CorePercent: 100, Replicas: 3}
	second := node.Device{UUID: "GPU-2", GPU: "GPU-2", MemoryMiB: 333, CorePercent: 100, Replicas: 3}
	plain := node.Sharing{Replicas: 3, Memory: 1, Cores: 1}
	with := func(change func(*node.Sharing)) node.Sharing {
		s := plain
		change(&s)
		return s
	}
	for _, test := range []struct {
		description string
		sharing     node.Sharing
		machine     nvidia.Node
		want        []node.Device
	}{
		{"as they are", plain, machine(), []node.Device{first, second}},
		{"scaled", node.Sharing{Replicas: 3, Memory: 1.5, Cores: 2}, machine(), []node.Device{
			{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1500, CorePercent: 200, Replicas: 3},
			{UUID: "GPU-2", GPU: "GPU-2", MemoryMiB: 499, CorePercent: 200, Replicas: 3},
		}},
		{"memory as given, scaled", node.Sharing{Replicas: 1, Memory: 0.5, Cores: 1, MemoryMiB: 800}, machine(), []node.Device{
			{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 400, CorePercent: 100, Replicas: 1},
			{UUID: "GPU-2", GPU: "GPU-2", MemoryMiB: 400, CorePercent: 100, Replicas: 1},
		}},
		{"one excluded by its UUID", with(func(s *node.Sharing) {
			s.Excludes = func(uuid string, _ int) bool { return uuid == "GPU-1" }
		}), machine(), []node.Device{second}},
		{"one excluded by its index", with(func(s *node.Sharing) {
			s.Excludes = func(_ string, index int) bool { return index == 1 }
		}), machine(), []node.Device{first}},
		{"a GPU in MIG mode, and no strategy", plain, machine(small), []node.Device{first}},
		{"mixed", with(func(s *node.Sharing) { s.MIG = nvidia.MIGMixed }), machine(small), []node.Device{
			first, {UUID: "MIG-1", GPU: "GPU-2", Resource: "mig-1g.5gb", MemoryMiB: 100, CorePercent: 100, Replicas: 1},
		}},
		{"scaling is not for MIG devices, which share their memory", with(func(s *node.Sharing) {
			s.MIG, s.Memory, s.Cores, s.MemoryMiB = nvidia.MIGMixed, 2, 2, 5000
			s.Excludes = func(uuid string, _ int) bool { return uuid == "GPU-1" }
		}), machine(half, other), []node.Device{
			{UUID: "MIG-2", GPU: "GPU-2", Resource: "mig-1c.2g.10gb", MemoryMiB: 100, CorePercent: 100, Replicas: 1},
			{UUID: "MIG-3", GPU: "GPU-2", Resource: "mig-1c.2g.10gb", MemoryMiB: 100, CorePercent: 100, Replicas: 1},
		}},
		{"single, its one GPU without MIG excluded", with(func(s *node.Sharing) {
			s.MIG, s.Excludes = nvidia.MIGSingle, func(uuid string, _ int) bool { return uuid == "GPU-1" }
		}), machine(small), []node.Device{{UUID: "MIG-1", GPU: "GPU-2", MemoryMiB: 100, CorePercent: 100, Replicas: 1}}},
		{"a MIG device excluded", with(func(s *node.Sharing) {
			s.MIG, s.Excludes = nvidia.MIGMixed, func(uuid string, _ int) bool { return uuid == "MIG-1" }
		}), machine(small), []node.Device{first}},
		{"no GPUs", plain, nvidia.Node{}, []node.Device{}},
	} {
		t.Run(test.description, func(t *testing.T) {
			devices, err := test.sharing.Devices(test.machine)
			require.NoError(t, err)
			assert.Equal(t, test.want, devices)
			for _, d := range devices {
				assert.Equal(t, d.UUID != d.GPU, d.MIG())
				parent := ""
				if d.MIG() {
					parent = d.GPU
				}
				assert.Equal(t, grant.GPU{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Replicas: d.Replicas, Parent: parent}, node.Capacities(devices)[d.UUID])
			}
		})
	}
	_, err := with(func(s *node.Sharing) { s.MIG = nvidia.MIGSingle }).Devices(machine(small))
	require.ErrorContains(t, err, "needs one profile on all GPUs")
}
