package deviceplugin

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience is how long a test waits for what has to happen. An earlier deadline
// is stated.
const patience = time.Minute

var silence = slog.New(slog.DiscardHandler)

// kubelet plays the kubelet's device manager.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	dir        string
	server     *grpc.Server
	serving    sync.WaitGroup
	registered chan *v1beta1.RegisterRequest
}

// newKubelet starts one as the kubelet starts: it removes every socket of the directory,
// then makes its own (kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go).
func newKubelet(t testing.TB, dir string) *kubelet {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, e.Name()))) // a plugin may remove its own
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, kubeletSocket), Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false) // as one that is killed
	k := &kubelet{dir: dir, server: grpc.NewServer(), registered: make(chan *v1beta1.RegisterRequest, 16)}
	v1beta1.RegisterRegistrationServer(k.server, k)
	k.serving.Go(func() { _ = k.server.Serve(l) }) // the registration fails then
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) stop() {
	k.server.Stop()
	k.serving.Wait()
}

func (k *kubelet) Register(_ context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.registered <- r
	return &v1beta1.Empty{}, nil
}

// plugin waits for a registration, and connects to the plugin.
func (k *kubelet) plugin(t testing.TB) (*v1beta1.RegisterRequest, v1beta1.DevicePluginClient) {
	t.Helper()
	select {
	case r := <-k.registered:
		return r, dial(t, filepath.Join(k.dir, r.GetEndpoint()))
	case <-time.After(patience):
		require.FailNow(t, "no plugin registered")
		return nil, nil
	}
}

func dial(t testing.TB, path string) v1beta1.DevicePluginClient {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return v1beta1.NewDevicePluginClient(conn)
}

// list is a ListAndWatch that is under way.
type list struct {
	stream grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]
}

func watchDevices(t testing.TB, plugin v1beta1.DevicePluginClient) list {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	require.NoError(t, err)
	return list{stream}
}

// next waits for the next message.
func (l list) next(t testing.TB) []*v1beta1.Device {
	t.Helper()
	m, err := l.stream.Recv()
	require.NoError(t, err)
	return m.GetDevices()
}

// health is the next message's health, by id.
func (l list) health(t testing.TB) map[string]string {
	t.Helper()
	health := map[string]string{}
	for _, d := range l.next(t) {
		health[d.GetID()] = d.GetHealth()
	}
	return health
}

// shortDir is a directory with a path that is short enough for a socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "gsd")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve runs a server; stop ends it and waits for it.
func serve(t testing.TB, dir string, plugin *Plugin) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		NewServer(dir, plugin.Resource.Name, plugin, silence).Run(ctx)
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	}
	t.Cleanup(stop)
	return stop
}
