package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant/podresources"
)

// registration plays the kubelet, for the registration of plugins.
type registration struct {
	v1beta1.UnimplementedRegistrationServer
	requests chan *v1beta1.RegisterRequest
}

func (r registration) Register(_ context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	r.requests <- request
	return &v1beta1.Empty{}, nil
}

func startKubelet(t *testing.T, dir string) registration {
	l, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	require.NoError(t, err)
	kubelet := registration{requests: make(chan *v1beta1.RegisterRequest, 16)}
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, kubelet)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return kubelet
}

// plugin waits for a registration, and connects to the plugin.
func (r registration) plugin(t *testing.T, dir string) (*v1beta1.RegisterRequest, v1beta1.DevicePluginClient) {
	t.Helper()
	select {
	case request := <-r.requests:
		conn, err := grpc.NewClient("unix:"+filepath.Join(dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return request, v1beta1.NewDevicePluginClient(conn)
	case <-time.After(time.Minute):
		require.FailNow(t, "no plugin registered")
		return nil, nil
	}
}

// simctl changes the simulated driver's state.
func simctl(t *testing.T, args ...string) {
	build, err := built()
	require.NoError(t, err)
	out, err := exec.Command(filepath.Join(build, "sim", "simctl"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The agent registers its GPUs; they are healthy once the runtime is there, and until they are ill.
func TestAgentOffersItsGPUs(t *testing.T) {
	o := testOptions(t)
	o.DevicePluginDir, o.ResourceName, o.SplitCount, o.GDSEnabled = shortDir(t), "example.com/slice", 2, true
	kubelet := startKubelet(t, o.DevicePluginDir)
	stop, log := o.run(t)
	r, plugin := kubelet.plugin(t, o.DevicePluginDir)
	assert.Equal(t, "example.com/slice", r.GetResourceName())

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	require.NoError(t, err)
	health := func() map[string]string {
		message, err := stream.Recv()
		require.NoError(t, err, "%v", log)
		health := map[string]string{}
		for _, d := range message.GetDevices() {
			health[d.GetID()] = d.GetHealth()
		}
		return health
	}
	const gpu = "GPU-00000001-5151-4000-8000-000000000001"
	assert.Equal(t, map[string]string{gpu + "::0": "Unhealthy", gpu + "::1": "Unhealthy"}, health(), "not connected")
	startRuntime(t, o.NRISocket)
	assert.Equal(t, map[string]string{gpu + "::0": "Healthy", gpu + "::1": "Healthy"}, health())

	simctl(t, "xid", "0", "13") // a program's own fault
	simctl(t, "xid", "0", "79")
	assert.Equal(t, map[string]string{gpu + "::0": "Unhealthy", gpu + "::1": "Unhealthy"}, health())

	allocated, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{gpu + "::1"}}}})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_GDS": "enabled"}, allocated.GetContainerResponses()[0].GetEnvs())
	assert.Equal(t, gpu+"::1", allocated.GetContainerResponses()[0].GetAnnotations()[api.AnnotationReplicas])

	require.NoError(t, stop())
	assert.NoFileExists(t, deviceplugin.SocketPath(o.DevicePluginDir, "example.com/slice"))
}

// Two replicas are of linked GPUs.
func TestAgentPrefersLinkedGPUs(t *testing.T) {
	o := testOptions(t)
	simctl(t, "init", "--force", "--gpu", "H200", "--gpu", "H200:nvlink=2:4", "--gpu", "H200")
	o.DevicePluginDir, o.SplitCount = shortDir(t), 1
	kubelet := startKubelet(t, o.DevicePluginDir)
	o.run(t)
	_, plugin := kubelet.plugin(t, o.DevicePluginDir)
	id := func(n int) string { return fmt.Sprintf("GPU-%08d-5151-4000-8000-%012d::0", n, n) }
	preferred, err := plugin.GetPreferredAllocation(context.Background(), &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: []string{id(1), id(2), id(3)}, AllocationSize: 2,
		}},
	})
	require.NoError(t, err)
	assert.Equal(t, []string{id(2), id(3)}, preferred.GetContainerResponses()[0].GetDeviceIDs())
}

func TestFeatures(t *testing.T) {
	for _, test := range []struct {
		args []string
		want map[string]string
	}{
		{nil, map[string]string{}},
		{[]string{"--gds-enabled"}, map[string]string{"NVIDIA_GDS": "enabled"}},
		{[]string{"--mofed-enabled", "--gdrcopy-enabled"}, map[string]string{"NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled"}},
	} {
		o, started, _, _, stderr := agent(append(test.args, "--node-name=n")...)
		require.True(t, started, stderr)
		assert.Equal(t, test.want, o.featureEnv(), test.args)
	}
}

func TestCountedResources(t *testing.T) {
	one := func(name string) podresources.Resource { return podresources.Resource{Name: name, PerGPU: 1} }
	for _, test := range []struct {
		args []string
		want []podresources.Resource
	}{
		{nil, []podresources.Resource{one("nvidia.com/gpu")}},
		{[]string{"--resource-name=example.com/slice"}, []podresources.Resource{one("nvidia.com/gpu"), one("example.com/slice")}},
		{[]string{"--resource-name=example.com/slice", "--device-plugin-dir="}, []podresources.Resource{one("nvidia.com/gpu")}},
		{[]string{"--resource-profile=tencent"}, []podresources.Resource{one("nvidia.com/gpu"), {Name: "tencent.com/vcuda-core", PerGPU: 100}}},
	} {
		o, started, _, _, stderr := agent(append(test.args, "--node-name=n")...)
		require.True(t, started, stderr)
		assert.Equal(t, test.want, o.countedResources(), test.args)
	}
}
