package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/monitor/node"
)

// emptyHost is a host with files and nothing else.
type emptyHost struct{ fstest.MapFS }

var errNone = errors.New("there is none")

func (emptyHost) IsRoot() bool { return true }

func (emptyHost) Filesystem(string) (doctor.Filesystem, error) { return doctor.Filesystem{}, errNone }

func (emptyHost) RuntimeVersion(context.Context, string) (string, string, error) {
	return "", "", errNone
}

func (emptyHost) Output(context.Context, string, ...string) (string, error) { return "", errNone }

func (emptyHost) Network(int) (string, error)                           { return "", errNone }
func (emptyHost) Get(context.Context, int, string) (int, string, error) { return 0, "", errNone }

// The node's configuration is followed while the agent runs: the kubelet's devices, what
// may be granted, and what people read change with it, without a new registration. A bad
// file changes nothing.
func TestAgentFollowsTheNodesConfiguration(t *testing.T) {
	o := testOptions(t)
	o.DevicePluginDir, o.NodeConfigFile = shortDir(t), filepath.Join(t.TempDir(), "config.json")
	write := func(text string) {
		temp := o.NodeConfigFile + ".new"
		require.NoError(t, os.WriteFile(temp, []byte(text), 0o600))
		require.NoError(t, os.Rename(temp, o.NodeConfigFile))
	}
	write(`{"nodeconfig":[{"name":"node-1","devicesplitcount":2,"devicememoryscaling":0.5}]}`)
	kubelet := startKubelet(t, o.DevicePluginDir)
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	_, plugin := kubelet.plugin(t, o.DevicePluginDir)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	require.NoError(t, err)
	// devices waits until the kubelet has so many, and they are published.
	devices := func(want int) node.File {
		t.Helper()
		for {
			message, err := stream.Recv()
			require.NoError(t, err, "%v", log)
			if len(message.GetDevices()) == want {
				break
			}
		}
		var published node.File
		require.Eventually(t, func() bool {
			published, err = node.Read(o.StateDir)
			replicas := 0
			for _, d := range published.Devices {
				replicas += d.Replicas
			}
			return err == nil && replicas == want
		}, time.Minute, 5*time.Millisecond, "%v", log)
		return published
	}
	published := devices(2)
	assert.Equal(t, int64(143771/2), published.Devices[0].MemoryMiB)

	write(`{"nodeconfig":[{"nameglob":"node-*","devicesplitcount":3}]}`)
	published = devices(3)
	assert.Equal(t, int64(143771), published.Devices[0].MemoryMiB)

	write(`{"nodeconfig":[{"name":"node-1","devicesplitcount":"many"}]}`)
	require.Eventually(t, func() bool { return contains(log, "the last valid one stays") }, time.Minute, 5*time.Millisecond)
	write(`{"nodeconfig":[{"name":"node-1","operatingmode":"mig"}]}`)
	require.Eventually(t, func() bool { return contains(log, "gpuslice does not partition GPUs") }, time.Minute, 5*time.Millisecond)

	write(`{"nodeconfig":[{"name":"node-1","filterdevices":{"index":[0]},"operatingmode":"mps"}]}`)
	assert.Empty(t, devices(0).Devices)
	assert.True(t, contains(log, "shared by limits, as hami-core"))
	write(`{"nodeconfig":[]}`)
	devices(10)
	require.NoError(t, stop())
	select {
	case r := <-kubelet.requests:
		assert.Fail(t, "registered again", r)
	default:
	}
}

// gpu-manager's resources: two sockets, the devices passed along in few words.
func TestAgentOffersVcuda(t *testing.T) {
	o := testOptions(t)
	o.DevicePluginDir, o.ResourceProfile = shortDir(t), string(profileTencent)
	kubelet := startKubelet(t, o.DevicePluginDir)
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	counts := map[string]int{}
	for range 2 {
		r, plugin := kubelet.plugin(t, o.DevicePluginDir)
		stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
		require.NoError(t, err, "%v", log)
		message, err := stream.Recv()
		require.NoError(t, err, "%v", log)
		counts[r.GetResourceName()] = len(message.GetDevices())
		allocated, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
			{DevicesIds: []string{message.GetDevices()[0].GetID(), message.GetDevices()[1].GetID()}},
		}})
		require.NoError(t, err)
		a := allocated.GetContainerResponses()[0]
		assert.Equal(t, "void", a.GetEnvs()["NVIDIA_VISIBLE_DEVICES"])
		require.Len(t, a.GetAnnotations(), 1)
		for _, value := range a.GetAnnotations() {
			assert.Equal(t, message.GetDevices()[0].GetID()+"-1", value)
		}
	}
	assert.Equal(t, map[string]int{"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 143771 / 256}, counts)
	require.NoError(t, stop())
}
