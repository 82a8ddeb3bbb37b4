package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/loopback"
)

// What the node offers as devices of ResourceSlices, in the place of the kubelet's replicas.
func TestOfferByDRA(t *testing.T) {
	o := parsed(t, "--resource-api=dra", "--mig-strategy=mixed")
	d := &draOffer{pcieRoot: func(busID string) string { return "root of " + busID }}
	_, known := d.now()
	require.False(t, known)
	d.set("n", &offer{})
	_, known = d.now()
	require.False(t, known, "before the GPUs were read")

	s := look("abC")
	s.Taken = time.Unix(1, 0)
	s.Node.DriverVersion, s.Node.GPUs[0].PCIBusID = "570.1.2", "00000000:3B:00.0"
	first := o.offerOf(s, nodeconfig.Settings{}, nil, nil)
	d.set("n", first)
	n, known := d.now()
	require.True(t, known)
	require.True(t, n.NotConnected)
	require.Equal(t, "570.1.2", n.DriverVersion)
	require.Len(t, n.Devices, 3)
	require.Equal(t, devices.Device{Capacity: first.Devices[0].Capacity(), GPU: s.Node.GPUs[0], PCIeRoot: "root of 0000:3b:00.0"}, n.Devices[0])
	require.Equal(t, "MIG-C", n.Devices[2].Capacity.UUID)
	require.Equal(t, "1g.5gb", n.Devices[2].Profile)
	pool := n.Pool(n.Devices[1])

	// Health, cordons and the loss of a GPU change no name.
	ill := look("abC")
	ill.Taken = time.Unix(2, 0)
	ill.Health["GPU-a"] = nvidia.Health{Reason: "XID 79"}
	second := o.offerOf(without(ill, "GPU-b"), nodeconfig.Settings{}, nil, first)
	second.Connected, second.Cordoned = true, []string{"GPU-C"}
	d.set("n", second)
	n, known = d.now()
	require.True(t, known)
	require.False(t, n.NotConnected)
	require.Len(t, n.Devices, 3)
	require.Equal(t, "XID 79", n.Devices[0].Problem)
	require.True(t, n.Devices[1].Cordoned, "a MIG device has its GPU's cordon")
	require.Empty(t, n.Devices[1].Problem)
	require.Equal(t, "GPU-b", n.Devices[2].Capacity.UUID)
	require.Equal(t, "gone", n.Devices[2].Problem)
	require.Equal(t, pool, n.Pool(n.Devices[2]))

	second.Stale = errors.New("NVML hangs")
	d.set("n", second)
	n, _ = d.now()
	for _, device := range n.Devices {
		require.Equal(t, "NVML hangs", device.Problem)
	}
	second.Problem = errors.New("the configuration is not known")
	d.set("n", second)
	_, known = d.now()
	require.False(t, known, "what was published stays, and nothing is prepared")
}

// A node offers its GPUs by one API: with the default nothing of DRA is made, and with DRA nothing of the device plugin.
func TestOneResourceAPI(t *testing.T) {
	o := testOptions(t)
	server := newAPIServer(t, "node-1", nil)
	o.KubernetesAPI, o.Kubeconfig, o.KubeletDir, o.DevicePluginDir = apiOn, server.kubeconfig(t), shortDir(t), shortDir(t)
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	registered := func() string { text, _ := server.read(api.AnnotationHAMiRegister); return text }
	require.Eventually(t, func() bool { return registered() != "" && len(left(t, o.DevicePluginDir)) == 1 }, time.Minute, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
	require.Empty(t, left(t, o.KubeletDir))
	require.NoDirExists(t, filepath.Join(o.StateDir, api.PreparedDirName))

	o.ResourceAPI, o.HealthAddress, o.MetricsAddress = resourceDRA, loopback.FreeAddress(t), loopback.FreeAddress(t)
	o.DevicePluginDir = shortDir(t)
	stop, log = o.run(t)
	require.Eventually(t, func() bool {
		_, err := os.Stat(o.registrationSocket())
		return err == nil && get(o.HealthAddress, "/readyz").status == 200
	}, time.Minute, 5*time.Millisecond, "%v", log)
	require.Empty(t, left(t, o.DevicePluginDir))
	// gpuslice's scheduler and HAMi's must not place pods: the annotations are removed.
	require.Eventually(t, func() bool {
		return server.removed(api.AnnotationHAMiRegister) && server.removed(api.AnnotationNodeGPUs)
	}, time.Minute, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
}

func TestDRAWithoutAnAPIServer(t *testing.T) {
	o := testOptions(t)
	o.ResourceAPI = resourceDRA
	require.ErrorContains(t, run(t.Context(), o.options, quietLog), "needs the API server")
}

// 250 pods of a node start at once, each with a ResourceClaim, for which there are two requests.
func TestManyResourceClaimsAtOnce(t *testing.T) {
	client, err := draClient(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(t, err)
	limiter := client.ResourceV1().RESTClient().GetRateLimiter()
	for i := range 2 * 250 {
		require.True(t, limiter.TryAccept(), "request %d", i)
	}
}

func TestRetireRemovesDRA(t *testing.T) {
	o := retired(t, ledger.OwnerNRI)
	o.KubeletDir, o.CDISpecDirs = t.TempDir(), []string{t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "missing")}
	write := func(path string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	for _, file := range []string{
		filepath.Join(o.StateDir, "prepared/uid.json"), o.registrationSocket(), filepath.Join(o.KubeletDir, "plugins/gpu.gpuslice.io/dra.sock"),
		filepath.Join(o.CDISpecDirs[1], "gpuslice-claim-uid.json"), filepath.Join(o.CDISpecDirs[1], ".new-gpuslice-claim-uid.json.7"),
		filepath.Join(o.KubeletDir, "plugins/others/dra.sock"), filepath.Join(o.KubeletDir, "plugins_registry/others-reg.sock"), filepath.Join(o.CDISpecDirs[1], "nvidia.json"),
	} {
		write(file)
	}
	require.NoError(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)))
	require.Empty(t, left(t, o.StateDir))
	require.Equal(t, []string{"others"}, left(t, filepath.Join(o.KubeletDir, "plugins")))
	require.Equal(t, []string{"others-reg.sock"}, left(t, filepath.Join(o.KubeletDir, "plugins_registry")))
	require.Equal(t, []string{"nvidia.json"}, left(t, o.CDISpecDirs[1]))
	require.NoError(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)), "and again")
}

// With --mig-on-request the places of a GPU in MIG mode are offered, and the MIG devices of others.
func TestOfferOfPlaces(t *testing.T) {
	for _, args := range [][]string{{"--mig-on-request"}, {"--mig-on-request", "--resource-api=dra"}, {"--mig-on-request", "--resource-api=dra", "--mig-strategy=single"}, {"--mig-on-request", "--mig-strategy=mixed"}} {
		_, started, _, _, stderr := agent(append(args, "--node-name=n")...)
		require.False(t, started, "%v", args)
		require.Contains(t, stderr, "mig-on-request", "%v", args)
	}
	o := parsed(t, "--resource-api=dra", "--mig-strategy=mixed", "--mig-on-request")
	require.True(t, o.MIGOnRequest)
	s := look("aC")
	s.Taken = time.Unix(1, 0)
	s.Node.GPUs[1].MIG[0].GPUInstance = 2
	half := []hardware.Place{{Start: 0, Size: 4}, {Start: 4, Size: 4}}
	s.Node.GPUs[1].Profiles = []hardware.MIGProfile{{ID: 9, Name: "3g.20gb", Slices: 3, Most: 2, Places: half}}
	s.Node.GPUs[1].Instances = []hardware.GPUInstance{{ID: 2, Profile: 9, Place: half[1], Compute: []hardware.ComputeInstance{{UUID: "MIG-C"}}}}
	record := partition.Record{Place: partition.Place{GPU: "GPU-C", Profile: 9, At: half[1]}, Claim: "uid", State: partition.Used, Instance: 2, UUID: "MIG-C"}
	of := func(migOnRequest bool, made ...partition.Record) devices.Node {
		d := &draOffer{pcieRoot: func(string) string { return "" }, migOnRequest: migOnRequest}
		d.set("n", o.offerOf(s, nodeconfig.Settings{}, nil, nil), made...)
		n, known := d.now()
		require.True(t, known)
		require.Len(t, n.Devices, 2)
		return n
	}
	n := of(false)
	require.Empty(t, n.Places)
	require.False(t, n.Devices[1].OnRequest)
	n = of(true)
	require.Len(t, n.Places, 1, "the other one has an instance of others")
	require.Equal(t, half[0], n.Places[0].At)
	require.False(t, n.Devices[1].OnRequest)
	n = of(true, record)
	require.Len(t, n.Places, 2)
	require.True(t, n.Devices[1].OnRequest)
	require.Equal(t, []string{"MIG-C", ""}, []string{n.Places[0].UUID, n.Places[1].UUID})
	require.False(t, n.Places[0].Occupied)
	n = of(false, record)
	require.Len(t, n.Places, 1, "the option was switched off while a ResourceClaim has a MIG device")
	require.Equal(t, "MIG-C", n.Places[0].UUID)
	require.True(t, n.Places[0].Occupied)
	o.StateDir = t.TempDir()
	require.True(t, o.hasMIG())
	o.MIGOnRequest = false
	require.False(t, o.hasMIG())
	require.NoError(t, os.Mkdir(filepath.Join(o.StateDir, "mig"), 0o700))
	require.True(t, o.hasMIG(), "an earlier agent left a journal")
	o.MIGOnRequest = true
	// While it is made: before the journal has its ID, and before it has its UUID.
	making := record
	making.UUID = ""
	for _, making.State = range []partition.State{partition.Intended, partition.Instance} {
		n = of(true, making)
		require.True(t, n.Devices[1].OnRequest, making.State)
		require.Empty(t, n.Places[0].UUID)
	}
	making.At, making.Instance = half[0], 1
	require.False(t, of(true, making).Devices[1].OnRequest, "another place")
	record.Claim = "" // also after the journal has removed it, until the GPUs are read again
	n = of(true, record)
	require.True(t, n.Devices[1].OnRequest)
	require.True(t, n.Places[0].Occupied)
	require.False(t, n.Places[1].Occupied)
	s.Health["GPU-C"] = nvidia.Health{Reason: "XID 79"}
	require.Equal(t, "XID 79", of(true, record).Places[0].Problem)
}

// A MIG device that was made is in no CDI spec: it gets the common edits of one, and nodes by their numbers.
func TestEditsOfMadeDevices(t *testing.T) {
	specs := t.TempDir()
	spec := "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits: {env: [NVIDIA_VISIBLE_DEVICES=void]}\ncontainerEdits: {env: [COMMON=1]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(specs, "nvidia.yaml"), []byte(spec), 0o644))
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: []string{specs}})
	require.NoError(t, err)
	n := look("C").Node
	n.GPUs[0].Minor, n.GPUs[0].MIG[0].GPUInstance = 3, 2
	access := func(minor string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("DeviceFileMinor: " + minor + "\n")}
	}
	proc := fstest.MapFS{
		"devices": {Data: []byte("Character devices:\n195 nvidia\n508 nvidia-caps\n")},
		"driver/nvidia/capabilities/gpu3/mig/gi2/access": access("30"), "driver/nvidia/capabilities/gpu3/mig/gi2/ci0/access": access("31"),
	}
	made := []partition.Record{{UUID: "MIG-C"}}
	m := madeDevices{registry, func() nvidia.Node { return n }, proc, func() []partition.Record { return made }}
	edits, err := m.DeviceEdits([]string{"MIG-C"})
	require.NoError(t, err)
	require.Equal(t, []string{"COMMON=1"}, edits.Env)
	var nodes []string
	for _, d := range edits.DeviceNodes {
		nodes = append(nodes, fmt.Sprintf("%s %d:%d", d.Path, d.Major, d.Minor))
	}
	require.Equal(t, []string{"/dev/nvidia3 195:3", "/dev/nvidia-caps/nvidia-cap30 508:30", "/dev/nvidia-caps/nvidia-cap31 508:31"}, nodes)
	delete(proc, "devices")
	_, err = m.DeviceEdits([]string{"MIG-C"})
	require.Error(t, err)
	made = nil
	_, err = m.DeviceEdits([]string{"MIG-C"})
	require.ErrorContains(t, err, "no CDI device", "others' are in a CDI spec")
}
