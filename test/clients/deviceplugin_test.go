//go:build clients

package clients

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/simdriver"
)

// NVIDIA's device plugin in a mount namespace with a directory of the kubelet of its own.
const devicePlugin = `exec unshare --mount sh -c 'mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
	mount --bind "$KUBELET" /var/lib/kubelet/device-plugins && exec nvidia-device-plugin --pass-device-specs'`

// kubelet plays the kubelet's device manager.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	registered chan *v1beta1.RegisterRequest
}

// Register implements v1beta1.RegistrationServer.
func (k *kubelet) Register(_ context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.registered <- r
	return &v1beta1.Empty{}, nil
}

func newKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	require.NoError(t, err)
	k, server := &kubelet{registered: make(chan *v1beta1.RegisterRequest, 1)}, grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, k)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	return k
}

// The GPU has one UUID and one node in every mode: the plugin advertises and allocates it as without a limit.
func TestDevicePlugin(t *testing.T) {
	for _, m := range append([]mode{{name: "bare"}}, modes...) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s, dir := simdriver.New(t, simdriver.Plain, "H200"), t.TempDir()
			c := newContainer(t, s, "1")
			if m.name != "bare" {
				c.limit(t, m, limiter.DeviceLimit{MemoryLimitBytes: 8 * giB})
			}
			if m.neighbour {
				neighbour(t, s)
			}
			k := newKubelet(t, dir)
			cmd := c.command(t, devicePlugin)
			cmd.Env = append(cmd.Env, "KUBELET="+dir, "NVIDIA_DRIVER_ROOT="+c.driver, "DRIVER_ROOT_CTR_PATH="+c.driver)
			cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			var registration *v1beta1.RegisterRequest
			select {
			case registration = <-k.registered:
			case err := <-ended:
				require.FailNow(t, "it ended", "%v", err)
			}
			require.Equal(t, "nvidia.com/gpu", registration.GetResourceName())

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			connection, err := grpc.NewClient("unix:"+filepath.Join(dir, registration.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer connection.Close()
			plugin := v1beta1.NewDevicePluginClient(connection)
			stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
			require.NoError(t, err)
			list, err := stream.Recv()
			require.NoError(t, err)
			require.Len(t, list.GetDevices(), 1)
			uuid := s.Status().GPUs[0].UUID
			require.Equal(t, uuid, list.GetDevices()[0].GetID())
			require.Equal(t, v1beta1.Healthy, list.GetDevices()[0].GetHealth())
			allocated, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{uuid}}}})
			require.NoError(t, err)
			require.Len(t, allocated.GetContainerResponses(), 1)
			require.Equal(t, uuid, allocated.GetContainerResponses()[0].GetEnvs()["NVIDIA_VISIBLE_DEVICES"])

			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, <-ended)
		})
	}
}
