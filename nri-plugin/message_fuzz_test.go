package nriplugin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// answerRoom is the longest message of ttrpc: a longer answer closes the connection.
const answerRoom = 4 << 20

// A request of the runtime, as a pod's author can shape it and of any size: the plugin refuses
// it, or its answer fits a message and gives no GPU without a grant.
func FuzzCreateContainer(f *testing.F) {
	message := func(pod *api.PodSandbox, ctr *api.Container) []byte {
		data, err := proto.Marshal(&api.CreateContainerRequest{Pod: pod, Container: ctr})
		require.NoError(f, err)
		return data
	}
	ctr := newContainer("main", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_MEMORY_LIMIT_0=1m", "LD_PRELOAD=x")
	ctr.Mounts = []*api.Mount{{Destination: "/.gpuslice", Source: "/x", Type: "bind", Options: []string{"rbind"}}}
	ctr.Linux = &api.LinuxContainer{
		Devices:   []*api.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 195, Minor: 1}},
		Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: api.Int64(int64(195)), Access: "rw"}}},
	}
	ctr.CDIDevices = []*api.CDIDevice{{Name: "nvidia.com/gpu=all"}}
	ctr.Annotations = map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=0", "gpuslice.io/replicas": gpuA + "::0"}
	f.Add(message(newPod("p", nil), ctr), uint16(0), uint16(0))
	f.Add(message(newPod("p", named("main", gpuA, 1000, 10)), newContainer("main")), uint16(10000), uint16(250))
	f.Add(message(newPod("p", hami(gpuA, 1000, 10)), newContainer("main")), uint16(3), uint16(60000))
	f.Add([]byte{}, uint16(0), uint16(0))

	config := newConfig(f)
	config.Populate = func(string, ledger.Claim) error { return nil }
	plugin, err := nriplugin.New(config)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte, variables, length uint16) {
		var request api.CreateContainerRequest
		if proto.Unmarshal(data, &request) != nil {
			return
		}
		if request.Pod == nil {
			request.Pod = &api.PodSandbox{}
		}
		if request.Container == nil {
			request.Container = &api.Container{}
		}
		if int(variables)*int(length) <= 3<<20 { // with what else is in it this fits into a request
			text := strings.Repeat("x", int(length))
			for i := range variables {
				request.Container.Env = append(request.Container.Env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%s%d=1", text, i))
			}
		}
		adjust, _, err := plugin.CreateContainer(context.Background(), request.Pod, request.Container)
		if err != nil {
			require.Less(t, len(err.Error()), answerRoom)
			return
		}
		require.Less(t, proto.Size(&api.CreateContainerResponse{Adjust: adjust}), answerRoom)
		claimed, err := config.Ledger.Snapshot(context.Background())
		require.NoError(t, err)
		if len(claimed.Claims()) == 0 {
			require.Empty(t, adjust.GetLinux().GetDevices())
			require.Empty(t, adjust.GetCDIDevices())
		}
		require.NoError(t, plugin.RemoveContainer(context.Background(), request.Pod, request.Container))
	})
}
