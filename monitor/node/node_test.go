package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	want := node.File{
		Name: "n", AgentVersion: "v1", WrittenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Devices: []node.Device{{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1000, CorePercent: 100, Replicas: 10}},
		Node:    nvidia.Node{DriverVersion: "575", GPUs: []nvidia.GPU{{UUID: "GPU-1", MemoryMiB: 1000}}},
	}
	require.NoError(t, node.Write(dir, want))
	got, err := node.Read(dir)
	require.NoError(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	want.BootID = strings.TrimSpace(string(boot))
	want.Version, want.ContextMiB = 2, map[string]int64{"GPU-1": 520}
	want.MemoryPages = api.NVIDIAPages
	require.Equal(t, want, got)
	device, known := got.Device("GPU-1")
	require.True(t, known)
	require.Equal(t, want.Devices[0], device)
	_, known = got.Device("GPU-2")
	require.False(t, known)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

// A topology that is not one is left out: Pair looks up its rows.
func TestReadABadTopology(t *testing.T) {
	for text, want := range map[string]int{
		`{"uuids":["a","b"],"pairs":[[{"level":"SYS"},{"level":"PIX"}],[{"level":"PIX"},{"level":"SYS"}]]}`: 2,
		`{"uuids":["a","b"],"pairs":[[{"level":"SYS"},{"level":"PIX"}],[{"level":"PIX"}]]}`:                 0,
		`{"uuids":["a","b"],"pairs":[]}`: 0,
	} {
		f, err := node.Decode([]byte(`{"version":2,"name":"n","topology":` + text + `}`))
		require.NoError(t, err)
		require.Len(t, f.Topology.UUIDs, want)
		require.Equal(t, "n", f.Name)
	}
}

func TestReadErrors(t *testing.T) {
	for _, test := range []struct{ description, content, want string }{
		{"no file", "", "has gpuslice-agent run on this node"},
		{"not JSON", "{", "node.json"},
		{"another version", `{"version":7}`, "version is 7"},
	} {
		t.Run(test.description, func(t *testing.T) {
			dir := t.TempDir()
			if test.content != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(test.content), 0o600))
			}
			_, err := node.Read(dir)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestWriteToADirThatIsNotThere(t *testing.T) {
	require.ErrorContains(t, node.Write("/nonexistent", node.File{}), "node.json")
}

// A node of docker's has no agent, and its GPUs are known all the same.
func TestReadWithoutAnAgent(t *testing.T) {
	dir := t.TempDir()
	want := node.File{Devices: []node.Device{{UUID: "GPU-1", GPU: "GPU-1", MemoryMiB: 1000, CorePercent: 100, Replicas: 10}}}
	data, err := want.Encode()
	require.NoError(t, err)
	path := filepath.Join(dir, "gpus.json")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"bootID":"x","node":%s}`, data), 0o600))
	got, err := node.Read(dir)
	require.NoError(t, err)
	require.Equal(t, want.Devices, got.Devices)

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = node.Read(dir)
	require.ErrorContains(t, err, path)
}

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

// The table of links is square, whatever the file has.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":2,"devices":[{"UUID":"a"}],"topology":{"uuids":["a","b"],"pairs":[[{},{}],[{}]]}}`))
	f.Add([]byte(`{"version":2,"topology":{"UUIDs":["a"],"Pairs":[[{"Level":3}]]}}`))
	f.Add([]byte(`{"version":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := node.Decode(data)
		if err != nil {
			return
		}
		for i, a := range file.Topology.UUIDs {
			require.Len(t, file.Topology.Pairs[i], len(file.Topology.UUIDs))
			_ = file.Topology.Link(a, file.Topology.UUIDs[0])
		}
	})
}
