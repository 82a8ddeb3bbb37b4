package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia"
)

// look is a look at GPUs that are all right, by their UUIDs' last letters: capitals are
// in MIG mode, with one instance.
func look(letters string) nvidia.Snapshot {
	s := nvidia.Snapshot{Health: map[string]nvidia.Health{}}
	for i, letter := range letters {
		c := nvidia.GPU{UUID: "GPU-" + string(letter), Index: i, Minor: i, NUMANode: i % 2, MemoryMiB: 1000, Model: "NVIDIA H200"}
		if letter < 'a' {
			c.MIGEnabled = true
			c.MIG = []nvidia.MIGDevice{{UUID: "MIG-" + string(letter), GPU: c.UUID, Profile: "1g.5gb", MemoryMiB: 100, GPUInstance: 3}}
			s.Health["MIG-"+string(letter)] = nvidia.Health{Healthy: true}
		}
		s.Node.GPUs = append(s.Node.GPUs, c)
		s.Health[c.UUID] = nvidia.Health{Healthy: true}
	}
	return s
}

func without(s nvidia.Snapshot, uuid string) nvidia.Snapshot {
	for i, c := range s.Node.GPUs {
		if c.UUID == uuid {
			s.Node.GPUs = append(s.Node.GPUs[:i:i], s.Node.GPUs[i+1:]...)
		}
	}
	s.Health[uuid] = nvidia.Health{Reason: "gone"}
	return s
}

// unread is a look in which a MIG device could not be read.
func unread(s nvidia.Snapshot, uuid string) nvidia.Snapshot {
	for i, c := range s.Node.GPUs {
		if len(c.MIG) == 1 && c.MIG[0].UUID == uuid {
			s.Node.GPUs[i].MIG = nil
			s.Node.Faults = append(s.Node.Faults, nvidia.Fault{UUID: uuid, GPU: c.UUID})
		}
	}
	s.Health[uuid] = nvidia.Health{Reason: "unreadable"}
	return s
}

// renumbered gives the GPUs that are left NVML's numbers from 0.
func renumbered(s nvidia.Snapshot) nvidia.Snapshot {
	for i := range s.Node.GPUs {
		s.Node.GPUs[i].Index = i
	}
	return s
}

func parsed(t *testing.T, args ...string) *options {
	o, started, _, _, stderr := agent(append(args, "--node-name=n", "--device-split-count=2")...)
	require.True(t, started, stderr)
	return &o
}

func row(uuid string, healthy bool, numa, devices int) deviceplugin.GPU {
	return deviceplugin.GPU{UUID: uuid, Healthy: healthy, NUMANode: numa, Devices: devices}
}

// What the kubelet is offered, by resource.
func TestForKubelet(t *testing.T) {
	replicas := deviceplugin.Replicas("nvidia.com/gpu")
	core, memory := deviceplugin.Vcuda()
	small := deviceplugin.Whole("nvidia.com/mig-1g.5gb", "mig-1g.5gb")
	type gpus = map[deviceplugin.Resource][]deviceplugin.GPU
	disabled, split, scaled := false, 5, 0.5
	for _, test := range []struct {
		description string
		args        []string
		settings    nodeconfig.Settings
		looks       []nvidia.Snapshot
		want        gpus
	}{
		{"no GPUs", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("")}, gpus{replicas: nil}},
		{"two GPUs", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("ab")}, gpus{replicas: {row("GPU-a", true, 0, 2), row("GPU-b", true, 1, 2)}}},
		{"another resource", []string{"--resource-name=example.com/x"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("a")}, gpus{deviceplugin.Replicas("example.com/x"): {row("GPU-a", true, 0, 2)}}},
		{"no NUMA nodes", nil, nodeconfig.Settings{NUMATopology: &disabled}, []nvidia.Snapshot{look("a")}, gpus{replicas: {row("GPU-a", true, -1, 2)}}},
		{"another split count", nil, nodeconfig.Settings{SplitCount: &split}, []nvidia.Snapshot{look("a")}, gpus{replicas: {row("GPU-a", true, 0, 5)}}},
		{"one excluded", nil, nodeconfig.Settings{Excluded: nodeconfig.Filter{Indices: []int{0}}}, []nvidia.Snapshot{look("ab")}, gpus{replicas: {row("GPU-b", true, 1, 2)}}},
		{"one vanishes", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("ab"), without(look("ab"), "GPU-b")}, gpus{replicas: {row("GPU-a", true, 0, 2), row("GPU-b", false, -1, 2)}}},
		{"one vanishes for long", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("ab"), without(look("ab"), "GPU-b"), without(look("ab"), "GPU-b")}, gpus{replicas: {row("GPU-a", true, 0, 2), row("GPU-b", false, -1, 2)}}},
		{
			"another vanishes, and NVML numbers the rest again", nil, nodeconfig.Settings{Excluded: nodeconfig.Filter{Indices: []int{1}}},
			[]nvidia.Snapshot{look("abc"), renumbered(without(look("abc"), "GPU-a"))}, gpus{replicas: {row("GPU-c", true, 0, 2), row("GPU-a", false, -1, 2)}},
		},
		{"one comes back", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("ab"), without(look("ab"), "GPU-b"), look("ab")}, gpus{replicas: {row("GPU-a", true, 0, 2), row("GPU-b", true, 1, 2)}}},
		{"one that was never offered vanishes", nil, nodeconfig.Settings{Excluded: nodeconfig.Filter{Indices: []int{1}}}, []nvidia.Snapshot{look("ab"), without(look("ab"), "GPU-b")}, gpus{replicas: {row("GPU-a", true, 0, 2)}}},
		{"gpu-manager's", []string{"--resource-profile=tencent"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("a")}, gpus{core: {row("GPU-a", true, 0, 100)}, memory: {row("GPU-a", true, 0, 3)}}},
		{"gpu-manager's, scaled", []string{"--resource-profile=tencent"}, nodeconfig.Settings{MemoryScaling: &scaled, CoresScaling: &scaled}, []nvidia.Snapshot{look("a")}, gpus{core: {row("GPU-a", true, 0, 50)}, memory: {row("GPU-a", true, 0, 1)}}},
		{"MIG, none", nil, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB")}, gpus{replicas: {row("GPU-a", true, 0, 2)}}},
		{"MIG, mixed", []string{"--mig-strategy=mixed"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB")}, gpus{replicas: {row("GPU-a", true, 0, 2)}, small: {row("MIG-B", true, 1, 1)}}},
		{"MIG, mixed by the node's configuration", nil, nodeconfig.Settings{MIGStrategy: "mixed"}, []nvidia.Snapshot{look("aB")}, gpus{replicas: {row("GPU-a", true, 0, 2)}, small: {row("MIG-B", true, 1, 1)}}},
		{"MIG, single", []string{"--mig-strategy=single"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("AB")}, gpus{replicas: {row("MIG-A", true, 0, 1), row("MIG-B", true, 1, 1)}}},
		{"MIG, single on a mixed node: nothing", []string{"--mig-strategy=single"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB")}, gpus{replicas: nil}},
		{"a MIG device's GPU vanishes", []string{"--mig-strategy=mixed"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB"), without(look("aB"), "GPU-B")}, gpus{replicas: {row("GPU-a", true, 0, 2)}, small: {row("MIG-B", false, -1, 1)}}},
		{"a MIG device can't be read", []string{"--mig-strategy=mixed"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB"), unread(look("aB"), "MIG-B")}, gpus{replicas: {row("GPU-a", true, 0, 2)}, small: {row("MIG-B", false, 1, 1)}}},
		{"one of two can't be read, single", []string{"--mig-strategy=single"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("AB"), unread(look("AB"), "MIG-B")}, gpus{replicas: {row("MIG-A", true, 0, 1), row("MIG-B", false, 1, 1)}}},
		{"a MIG device is destroyed", []string{"--mig-strategy=mixed"}, nodeconfig.Settings{}, []nvidia.Snapshot{look("aB"), look("ab")}, gpus{replicas: {row("GPU-a", true, 0, 2), row("GPU-b", true, 1, 2)}}},
	} {
		t.Run(test.description, func(t *testing.T) {
			o := parsed(t, test.args...)
			var now *offer
			for _, s := range test.looks {
				now = o.offerOf(s, test.settings, nil, now)
			}
			got := o.forKubelet(now)
			assert.Equal(t, test.want, got)
			for _, d := range now.Gone {
				assert.NotContains(t, now.capacities, d.UUID, "nothing is granted of what is gone")
			}
		})
	}
}

func TestOfferHealth(t *testing.T) {
	o := parsed(t, "--mig-strategy=mixed")
	health := func(ill ...string) map[string]bool {
		s := look("aB")
		for _, uuid := range ill {
			s.Health[uuid] = nvidia.Health{Reason: "XID 79"}
		}
		got := map[string]bool{}
		for _, gpus := range o.forKubelet(o.offerOf(s, nodeconfig.Settings{}, nil, nil)) {
			for _, c := range gpus {
				got[c.UUID] = c.Healthy
			}
		}
		return got
	}
	assert.Equal(t, map[string]bool{"GPU-a": true, "MIG-B": true}, health())
	assert.Equal(t, map[string]bool{"GPU-a": false, "MIG-B": true}, health("GPU-a"))
	assert.Equal(t, map[string]bool{"GPU-a": true, "MIG-B": false}, health("GPU-B"), "with its GPU")
	assert.Equal(t, map[string]bool{"GPU-a": true, "MIG-B": false}, health("MIG-B"), "by itself")
}

// What may be granted, and how its containers are set up.
func TestOfferCapacities(t *testing.T) {
	o := parsed(t, "--mig-strategy=mixed")
	now := o.offerOf(look("aB"), nodeconfig.Settings{}, nil, nil)
	assert.Equal(t, map[string]grant.GPU{
		"GPU-a": {UUID: "GPU-a", MemoryMiB: 1000, CorePercent: 100, Replicas: 2},
		"MIG-B": {UUID: "MIG-B", MemoryMiB: 100, CorePercent: 100, Replicas: 1, Parent: "GPU-B"},
	}, now.capacities)
	assert.Equal(t, map[string]int64{"GPU-a": 520, "MIG-B": 520}, now.contextMiB, "by the GPU's model")
	assert.Empty(t, now.beyond)

	assert.Equal(t, int64(0), parsed(t, "--context-memory-mib=0").offerOf(look("a"), nodeconfig.Settings{}, nil, nil).contextMiB["GPU-a"])
	assert.Equal(t, int64(300), parsed(t, "--context-memory-mib=300").offerOf(look("a"), nodeconfig.Settings{}, nil, nil).contextMiB["GPU-a"])

	more, much := 1.5, int64(2000)
	assert.Equal(t, map[string]float64{"GPU-a": 1.5}, o.offerOf(look("a"), nodeconfig.Settings{MemoryScaling: &more}, nil, nil).beyond)
	assert.Equal(t, map[string]float64{"GPU-a": 2}, o.offerOf(look("a"), nodeconfig.Settings{MemoryMiB: &much}, nil, nil).beyond)

	assert.Equal(t, deviceplugin.Packed, o.policy(nodeconfig.Settings{}))
	no := false
	assert.Equal(t, deviceplugin.InOrder, o.policy(nodeconfig.Settings{PreferredAllocation: &no}))
}

// A grant of a GPU that isn't offered is refused with the reason.
func TestOfferMissing(t *testing.T) {
	o := parsed(t)
	read := look("aB")
	read.Taken = time.Unix(1, 0)
	now := o.offerOf(read, nodeconfig.Settings{Excluded: nodeconfig.Filter{UUIDs: []string{"GPU-a"}}}, nil, nil)
	assert.Contains(t, now.missing("GPU-a"), "filterdevices")
	assert.Contains(t, now.missing("GPU-B"), "MIG mode")
	assert.Empty(t, now.missing("GPU-x"))
	assert.Contains(t, (&offer{}).missing("GPU-a"), "not been read yet")
	unsettled := o.offerOf(read, nodeconfig.Settings{}, nodeconfig.ErrLabelsUnknown, now)
	assert.Empty(t, unsettled.capacities, "nothing is granted by settings that aren't known")
	assert.Contains(t, unsettled.missing("GPU-a"), "labels")
}

// An NVML that hangs reports nothing: GPUs that weren't looked at for long are ill.
func TestStale(t *testing.T) {
	o := parsed(t, "--inventory-interval=10s")
	s := look("a")
	s.Taken = time.Unix(1000, 0)
	assert.NoError(t, o.stale(s, time.Unix(1049, 0)))
	assert.ErrorContains(t, o.stale(s, time.Unix(1051, 0)), "NVML has not responded")
	s.Err = errNotRead
	assert.NoError(t, o.stale(s, time.Unix(9999, 0)), "it answers, with an error")
	assert.NoError(t, o.stale(nvidia.Snapshot{}, time.Unix(9999, 0)), "before the first")

	now := o.offerOf(look("a"), nodeconfig.Settings{}, nil, nil)
	now.Stale = errNotRead
	for _, gpus := range o.forKubelet(now) {
		assert.False(t, gpus[0].Healthy)
	}
}

func TestCheckSettings(t *testing.T) {
	many, half := 60, 0.5
	for _, test := range []struct {
		description string
		args        []string
		settings    nodeconfig.Settings
		want        string
	}{
		{"nothing", nil, nodeconfig.Settings{}, ""},
		{"mps", nil, nodeconfig.Settings{OperatingMode: "mps"}, ""},
		{"mig without instances", nil, nodeconfig.Settings{OperatingMode: "mig"}, "operatingmode mig: gpuslice does not partition GPUs"},
		{"mig with a strategy", nil, nodeconfig.Settings{OperatingMode: "mig", MIGStrategy: "mixed"}, ""},
		{"mig with the agent's strategy", []string{"--mig-strategy=single"}, nodeconfig.Settings{OperatingMode: "mig"}, ""},
		{"single as cores and memory", []string{"--resource-profile=tencent"}, nodeconfig.Settings{MIGStrategy: "single"}, "migstrategy single"},
		{"shares too small", []string{"--unscheduled-policy=share"}, nodeconfig.Settings{SplitCount: &many, CoresScaling: &half}, "devicesplitcount 60"},
		{"small shares that a scheduler makes", nil, nodeconfig.Settings{SplitCount: &many, CoresScaling: &half}, ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			err := parsed(t, test.args...).checkSettings(test.settings)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
	level := json.Number("3")
	assert.Empty(t, unused(nodeconfig.Settings{SplitCount: &many}))
	assert.Len(t, unused(nodeconfig.Settings{OperatingMode: "mps", LogLevel: &level}), 2)
}

func TestDevicePaths(t *testing.T) {
	proc := fstest.MapFS{
		"driver/nvidia/capabilities/gpu1/mig/gi3/access":     {Data: []byte("DeviceFileMinor: 30\nDeviceFileMode: 256\n")},
		"driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access": {Data: []byte("DeviceFileMinor: 31\n")},
	}
	paths, err := devicePaths(look("aB").Node, proc, "GPU-a")
	require.NoError(t, err)
	assert.Equal(t, []string{"/dev/nvidia0"}, paths)
	paths, err = devicePaths(look("aB").Node, proc, "MIG-B")
	require.NoError(t, err)
	assert.Equal(t, []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"}, paths)

	_, err = devicePaths(look("a").Node, proc, "GPU-x")
	require.ErrorContains(t, err, "GPU-x is not on this node")
	_, err = devicePaths(look("B").Node, proc, "MIG-B")
	require.ErrorContains(t, err, "gpu0/mig/gi3/access")
	for _, text := range []string{"", "DeviceFileMinor: x\n", "DeviceFileMinor: -1\n"} {
		proc["driver/nvidia/capabilities/gpu1/mig/gi3/access"].Data = []byte(text)
		_, err = devicePaths(look("aB").Node, proc, "MIG-B")
		require.ErrorContains(t, err, "capability of a MIG device", text)
	}
}

// Missing parts of the driver are logged once, with a fix; the agent continues.
func TestWarnDriver(t *testing.T) {
	log := &logBuffer{}
	warnDriver(t.Context(), emptyHost{fstest.MapFS{}}, options{}, slog.New(slog.NewTextHandler(log, nil)))
	for _, want := range []string{"driver-modules", "modprobe -a nvidia nvidia_uvm", "driver-devices", "/dev/nvidiactl", "nvidia-modprobe -u -c 0"} {
		assert.Contains(t, log.String(), want)
	}
}

// The kubelet chooses MIG devices itself: a cordoned one is reported as unhealthy.
// GPUs are chosen by a scheduler, and stay as they are.
func TestCordonedMIGDevicesAreNotOffered(t *testing.T) {
	o := parsed(t, "--mig-strategy=mixed")
	for _, test := range []struct {
		cordoned []string
		want     map[string]bool
	}{
		{nil, map[string]bool{"GPU-a": true, "MIG-B": true}},
		{[]string{"GPU-B"}, map[string]bool{"GPU-a": true, "MIG-B": false}},
		{[]string{"MIG-B"}, map[string]bool{"GPU-a": true, "MIG-B": false}},
		{[]string{"GPU-a"}, map[string]bool{"GPU-a": true, "MIG-B": true}},
	} {
		now := o.offerOf(look("aB"), nodeconfig.Settings{}, nil, nil)
		now.Cordoned = test.cordoned
		got := map[string]bool{}
		for _, gpus := range o.forKubelet(now) {
			for _, c := range gpus {
				got[c.UUID] = c.Healthy
			}
		}
		assert.Equal(t, test.want, got, "%v", test.cordoned)
	}
}

// A cordon is seen within a second, and one that can't be read takes none back.
func TestCordonsAreFollowed(t *testing.T) {
	const gpu = "GPU-0a000000-1111-2222-3333-444455556666"
	o := parsed(t)
	o.StateDir = t.TempDir()
	p := newPublisher(o, nvidia.NewCache(nvml.New(nvml.WithLibraryPath("/nonexistent")), nvidia.CacheOptions{}), quietLog)
	require.False(t, p.due())
	list := filepath.Join(o.StateDir, "cordoned")
	require.NoError(t, os.WriteFile(list, []byte(gpu+"\n"), 0o600))
	require.True(t, p.due())
	p.current.Store(&offer{Cordoned: p.cordons()})
	assert.Equal(t, []string{gpu}, p.now().Cordoned)
	require.False(t, p.due())
	require.NoError(t, os.WriteFile(list, []byte("GPU 0\n"), 0o600))
	require.False(t, p.due())
	assert.Equal(t, []string{gpu}, p.cordons())
	require.NoError(t, os.Remove(list))
	require.True(t, p.due())
	assert.Empty(t, p.cordons())
}
