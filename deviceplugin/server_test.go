package deviceplugin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestServerRegisters(t *testing.T) {
	dir := shortDir(t)
	k := newKubelet(t, dir)
	plugin, _, _ := testPlugin(2, "GPU-a")
	stop := serve(t, dir, plugin)
	r, client := k.plugin(t)
	assert.Equal(t, "v1beta1", r.GetVersion())
	assert.Equal(t, "nvidia.com/gpu", r.GetResourceName())
	assert.Equal(t, "gpuslice-nvidia.com_gpu.sock", r.GetEndpoint())
	assert.True(t, r.GetOptions().GetGetPreferredAllocationAvailable())
	assert.False(t, r.GetOptions().GetPreStartRequired())
	devices := watchDevices(t, client)
	assert.Equal(t, map[string]string{"GPU-a::0": "Healthy", "GPU-a::1": "Healthy"}, devices.health(t))

	stop()
	_, err := devices.stream.Recv()
	require.Error(t, err, "the stream ends")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "only the kubelet's socket")
	assert.Equal(t, kubeletSocket, entries[0].Name())
}

// What may become of the sockets; each time the plugin registers again.
func TestServerRegistersAgain(t *testing.T) {
	for _, test := range []struct {
		description string
		happens     func(t *testing.T, k *kubelet) *kubelet
	}{
		{"the kubelet restarts", func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			return newKubelet(t, k.dir)
		}},
		{"the kubelet's socket is made again, ours stays", func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			other := newKubelet(t, shortDir(t))
			require.NoError(t, os.Rename(filepath.Join(other.dir, kubeletSocket), filepath.Join(k.dir, kubeletSocket)))
			other.dir = k.dir
			return other
		}},
		{"our socket is removed", func(t *testing.T, k *kubelet) *kubelet {
			require.NoError(t, os.Remove(SocketPath(k.dir, "nvidia.com/gpu")))
			return k
		}},
		{"our socket is replaced", func(t *testing.T, k *kubelet) *kubelet {
			other := filepath.Join(k.dir, "other")
			require.NoError(t, os.WriteFile(other, nil, 0o600))
			require.NoError(t, os.Rename(other, SocketPath(k.dir, "nvidia.com/gpu")))
			return k
		}},
		{"the directory is made again", func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			require.NoError(t, os.RemoveAll(k.dir))
			require.NoError(t, os.Mkdir(k.dir, 0o700))
			return newKubelet(t, k.dir)
		}},
		{"the kubelet restarts five times", func(t *testing.T, k *kubelet) *kubelet {
			for range 5 {
				k.stop()
				k = newKubelet(t, k.dir)
			}
			return k
		}},
	} {
		t.Run(test.description, func(t *testing.T) {
			dir := shortDir(t)
			k := newKubelet(t, dir)
			plugin, _, _ := testPlugin(1, "GPU-a")
			serve(t, dir, plugin)
			k.plugin(t)

			k = test.happens(t, k)
			// A registration may be of a socket that vanished at that moment: another follows.
			require.Eventually(t, func() bool {
				_, client := k.plugin(t)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				stream, err := client.ListAndWatch(ctx, &v1beta1.Empty{})
				if err != nil {
					return false
				}
				_, err = stream.Recv()
				return err == nil
			}, patience, time.Millisecond)
		})
	}
}

// On the end of an earlier plugin, the kubelet can end the connection to the one that registered since
// (runClient in kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go), at any moment.
func TestServerRegistersAgainWithoutListing(t *testing.T) {
	dir := shortDir(t)
	k := newKubelet(t, dir)
	plugin, _, _ := testPlugin(1, "GPU-a")
	serve(t, dir, plugin)
	for range 3 {
		_, client := k.plugin(t)
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := client.ListAndWatch(ctx, &v1beta1.Empty{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		cancel()
	}
	k.plugin(t) // and the devices are not listed
	k.plugin(t)
}

// A plugin that the kubelet follows does not register again and again.
func TestServerRegistersOnce(t *testing.T) {
	dir := shortDir(t)
	k := newKubelet(t, dir)
	plugin, _, _ := testPlugin(1, "GPU-a")
	serve(t, dir, plugin)
	_, client := k.plugin(t)
	watchDevices(t, client).next(t)
	for deadline := time.Now().Add(patience); ; {
		require.True(t, time.Now().Before(deadline), "it registers again and again")
		select {
		case <-k.registered: // the devices were listed late
		case <-time.After(2 * listTimeout):
			return
		}
	}
}

// An agent that was killed leaves its socket; a node has a kubelet, or a directory for
// it, only later.
func TestServerStartsBeforeTheKubelet(t *testing.T) {
	dir := shortDir(t)
	require.NoError(t, os.WriteFile(SocketPath(dir, "nvidia.com/gpu"), nil, 0o600))
	plugin, _, _ := testPlugin(1, "GPU-a")
	serve(t, dir, plugin)
	require.Eventually(t, func() bool {
		_, err := dial(t, SocketPath(dir, "nvidia.com/gpu")).GetDevicePluginOptions(context.Background(), &v1beta1.Empty{})
		return err == nil
	}, patience, time.Millisecond, "it serves without a kubelet")
	newKubelet(t, dir).plugin(t)

	later := filepath.Join(dir, "later")
	serve(t, later, plugin)
	require.NoError(t, os.Mkdir(later, 0o700))
	newKubelet(t, later).plugin(t)
}

// A socket that another took over is not removed with ours.
func TestServerRemovesItsOwnSocketOnly(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	ours, err := listen(path)
	require.NoError(t, err)
	assert.True(t, ours.there())
	require.NoError(t, os.Remove(path))
	assert.False(t, ours.there())
	theirs, err := listen(path)
	require.NoError(t, err)
	defer theirs.listener.Close()
	require.NoError(t, ours.listener.Close())
	require.NoError(t, ours.remove())
	assert.True(t, theirs.there())
	require.NoError(t, theirs.remove())
	assert.NoFileExists(t, path)
}

// warnings collects the sockets that a log warns of.
type warnings chan string

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w warnings) WithGroup(string) slog.Handler            { return w }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && strings.Contains(r.Message, "another device plugin") {
		r.Attrs(func(a slog.Attr) bool {
			w <- a.Value.String()
			return true
		})
	}
	return nil
}

// The kubelet uses the plugin that registered last: one that is there and one that comes later are reported.
func TestServerReportsOtherPlugins(t *testing.T) {
	dir := shortDir(t)
	plugin, _, _ := testPlugin(1, "GPU-a")
	there, later := filepath.Join(dir, "nvidia-gpu.sock"), filepath.Join(dir, "vcore.sock")
	k := newKubelet(t, dir)
	require.NoError(t, os.WriteFile(there, nil, 0o600)) // a kubelet removes all files when it starts
	found := make(warnings, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var server sync.WaitGroup
	server.Go(func() { NewServer(dir, plugin.Resource.Name, plugin, slog.New(found)).Run(ctx) })
	t.Cleanup(func() { cancel(); server.Wait() })
	k.plugin(t)
	wait := func(want string) {
		select {
		case got := <-found:
			require.Equal(t, want, got)
		case <-time.After(patience):
			require.Fail(t, "no warning of "+want)
		}
	}
	wait(there)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "amd.com_gpu"), nil, 0o600))
	require.NoError(t, os.WriteFile(later, nil, 0o600))
	wait(later)
}
