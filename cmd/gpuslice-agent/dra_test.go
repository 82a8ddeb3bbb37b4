package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/nvidia"
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

	o.ResourceAPI, o.HealthAddress, o.MetricsAddress = resourceDRA, freeAddress(t), freeAddress(t)
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
