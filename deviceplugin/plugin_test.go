package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/nvidia"
)

// GPUs are GPUs that are all right, of so many devices each.
func gpus(devices int, uuids ...string) []GPU {
	var gpus []GPU
	for i, uuid := range uuids {
		gpus = append(gpus, GPU{UUID: uuid, Healthy: true, NUMANode: i % 2, Devices: devices})
	}
	return gpus
}

// ill adds a GPU that is not.
func ill(gpus []GPU, uuid string, devices int) []GPU {
	return append(gpus, GPU{UUID: uuid, NUMANode: nvidia.NUMAUnknown, Devices: devices})
}

// testPlugin is a plugin of a connected node.
func testPlugin(split int, uuids ...string) (*Plugin, *Inventory, *Connection) {
	inventory := NewInventory()
	inventory.Set(gpus(split, uuids...))
	connection := NewConnection(func() error { return nil }, nil, silence)
	connection.look(time.Unix(0, 0))
	return New(Config{Resource: Replicas("nvidia.com/gpu"), GPUs: inventory, Connection: connection}), inventory, connection
}

// connected is a plugin's client, over its socket.
func connected(t testing.TB, plugin *Plugin) v1beta1.DevicePluginClient {
	dir := shortDir(t)
	k := newKubelet(t, dir)
	serve(t, dir, plugin)
	_, client := k.plugin(t)
	return client
}

// The ids and their order are the same whatever order NVML gives the GPUs.
func TestReplicas(t *testing.T) {
	ids := func(uuids ...string) (ids []string) {
		plugin, inventory, _ := testPlugin(2, uuids...)
		all, _ := inventory.GPUs()
		for _, d := range plugin.devices(all, true) {
			ids = append(ids, d.GetID())
		}
		return ids
	}
	want := []string{"GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"}
	assert.Equal(t, want, ids("GPU-a", "GPU-b"))
	assert.Equal(t, want, ids("GPU-b", "GPU-a"))
	assert.Empty(t, ids())

	plugin, inventory, _ := testPlugin(1, "GPU-a", "GPU-b")
	inventory.Set([]GPU{{"GPU-a", true, 1, 1}, {"GPU-b", true, nvidia.NUMAUnknown, 2}})
	all, _ := inventory.GPUs()
	devices := plugin.devices(all, true)
	require.Len(t, devices, 3)
	assert.Equal(t, int64(1), devices[0].GetTopology().GetNodes()[0].GetID())
	assert.Nil(t, devices[1].GetTopology())
}

func TestInventory(t *testing.T) {
	i := NewInventory()
	step := func(set []GPU, want ...GPU) {
		t.Helper()
		last, changed := i.GPUs()
		i.Set(set)
		now, _ := i.GPUs()
		assert.Equal(t, want, now)
		select {
		case <-changed:
			assert.NotEqual(t, last, now, "no notification without a change")
		default:
			assert.Equal(t, last, now, "everybody is woken")
		}
	}
	step(nil)
	step(gpus(2, "GPU-b", "GPU-a"), GPU{"GPU-a", true, 1, 2}, GPU{"GPU-b", true, 0, 2})
	step(gpus(2, "GPU-b", "GPU-a"), GPU{"GPU-a", true, 1, 2}, GPU{"GPU-b", true, 0, 2})
	step(ill(gpus(2, "GPU-b"), "GPU-a", 2), GPU{"GPU-a", false, -1, 2}, GPU{"GPU-b", true, 0, 2})
	step(gpus(4, "GPU-b"), GPU{"GPU-b", true, 0, 4})
}

func TestGuard(t *testing.T) {
	down := errors.New("not connected")
	for _, test := range []struct {
		description string
		at          map[time.Duration]error // what is found when
		want        []time.Duration         // when it changes
	}{
		{"never connected", map[time.Duration]error{0: down, time.Second: down, time.Hour: down}, nil},
		{"connected at once", map[time.Duration]error{0: nil, time.Second: nil}, []time.Duration{0}},
		{"connected later", map[time.Duration]error{0: down, time.Second: nil}, []time.Duration{time.Second}},
		{"a gap that is short", map[time.Duration]error{0: nil, time.Second: down, 4 * time.Second: down, 5 * time.Second: nil, 9 * time.Second: down}, []time.Duration{0}},
		{"a gap that is long", map[time.Duration]error{0: nil, time.Second: down, 5 * time.Second: down, 6 * time.Second: down}, []time.Duration{0, 5 * time.Second}},
		{"back after a long gap", map[time.Duration]error{0: nil, 5 * time.Second: down, 6 * time.Second: nil, 10 * time.Second: down}, []time.Duration{0, 5 * time.Second, 6 * time.Second}},
	} {
		t.Run(test.description, func(t *testing.T) {
			var found error
			g := NewConnection(func() error { return found }, nil, silence)
			var changes []time.Duration
			for at := time.Duration(0); at <= time.Hour; at += time.Second {
				var known bool
				if found, known = test.at[at]; !known {
					continue
				}
				_, changed := g.Connected()
				g.look(time.Unix(1000, 0).Add(at))
				select {
				case <-changed:
					changes = append(changes, at)
				default:
				}
			}
			assert.Equal(t, test.want, changes)
			connected, _ := g.Connected()
			assert.Equal(t, len(test.want)%2 == 1, connected)
		})
	}
}

// The kubelet has healthy devices for the pods that schedulers bound before they read that the agent is not
// connected; a connection that is back in between changes nothing for the kubelet.
func TestConnectionIsWithdrawnFromSchedulersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("not connected")
		var found atomic.Pointer[error]
		admitted := make(chan struct{})
		waits := 0
		c := NewConnection(func() error {
			if err := found.Load(); err != nil {
				return *err
			}
			return nil
		}, func(ctx context.Context) {
			waits++
			select {
			case <-ctx.Done():
			case <-admitted:
			}
		}, silence)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		after := func(d time.Duration, connected, healthy bool) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			now, _ := c.Connected()
			assert.Equal(t, connected, now, "for schedulers")
			now, _ = c.Healthy()
			assert.Equal(t, healthy, now, "for the kubelet")
		}
		after(0, true, true)
		for range 2 {
			found.Store(&down)
			after(interruption-pollInterval, true, true)
			after(time.Hour, false, true)
			found.Store(nil)
			after(pollInterval, true, true)
		}
		found.Store(&down)
		after(time.Hour, false, true)
		admitted <- struct{}{}
		after(0, false, false)
		found.Store(nil)
		after(pollInterval, true, true)
		cancel()
		running.Wait()
		assert.Equal(t, 3, waits)
	})
}

func TestGuardRun(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	g := NewConnection(func() error { return nil }, nil, silence)
	_, changed := g.Connected()
	go func() { defer close(ended); g.Run(ctx) }()
	<-changed
	cancel()
	<-ended
}

// Health goes both ways, over the socket; two watchers are both notified.
func TestHealthStreams(t *testing.T) {
	plugin, inventory, connection := testPlugin(1, "GPU-a", "GPU-b")
	client := connected(t, plugin)
	watchers := []list{watchDevices(t, client), watchDevices(t, client)}
	step := func(change func(), a, b string) {
		t.Helper()
		change()
		for _, w := range watchers {
			assert.Equal(t, map[string]string{"GPU-a::0": a, "GPU-b::0": b}, w.health(t))
		}
	}
	step(func() {}, "Healthy", "Healthy")
	step(func() { inventory.Set(ill(gpus(1, "GPU-a"), "GPU-b", 1)) }, "Healthy", "Unhealthy")
	step(func() { inventory.Set(gpus(1, "GPU-a", "GPU-b")) }, "Healthy", "Healthy")

	ready := connection.ready
	connection.ready = func() error { return errors.New("the runtime is gone") }
	step(func() { connection.look(time.Unix(3, 0)); connection.look(time.Unix(60, 0)) }, "Unhealthy", "Unhealthy")
	connection.ready = ready
	step(func() { connection.look(time.Unix(61, 0)) }, "Healthy", "Healthy")
}

func TestAllocate(t *testing.T) {
	plugin, _, _ := testPlugin(12, "GPU-a", "GPU-b")
	plugin.Env = map[string]string{"NVIDIA_GDS": "enabled"}
	var allocations atomic.Int32
	plugin.Allocated = func() { allocations.Add(1) }
	client := connected(t, plugin)
	allocate := func(containers ...[]string) (*v1beta1.AllocateResponse, error) {
		r := &v1beta1.AllocateRequest{}
		for _, ids := range containers {
			r.ContainerRequests = append(r.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: ids})
		}
		return client.Allocate(context.Background(), r)
	}

	response, err := allocate([]string{"GPU-b::1", "GPU-a::10", "GPU-a::2"}, []string{"GPU-b::0"})
	require.NoError(t, err)
	require.Len(t, response.GetContainerResponses(), 2)
	for i, want := range []string{"GPU-a::2,GPU-a::10,GPU-b::1", "GPU-b::0"} {
		got := response.GetContainerResponses()[i]
		assert.Equal(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_GDS": "enabled"}, got.GetEnvs())
		assert.Equal(t, map[string]string{"gpuslice.io/replicas": want}, got.GetAnnotations())
		assert.Empty(t, got.GetDevices(), "nothing is granted")
		assert.Empty(t, got.GetMounts(), "nothing is granted")
		assert.Empty(t, got.GetCdiDevices(), "nothing is granted")
	}
	assert.Equal(t, map[string]string{"NVIDIA_GDS": "enabled"}, maps.Clone(plugin.Env), "the settings stay as they are")
	assert.EqualValues(t, 1, allocations.Load())

	for _, test := range []struct {
		description string
		ids         []string
		want        string
	}{
		{"none", nil, "a container without a device of nvidia.com/gpu"},
		{"another node's GPU", []string{"GPU-a::0", "GPU-z::0"}, `"GPU-z::0": this node has no GPU GPU-z`},
		{"no number", []string{"GPU-a"}, `"GPU-a" is not a device of nvidia.com/gpu: must be <UUID>::<n>`},
		{"HAMi's", []string{"GPU-a-0"}, `"GPU-a-0" is not a device`},
		{"no GPU", []string{"::0"}, `"::0" is not a device`},
		{"empty", []string{""}, `"" is not a device`},
		{"not as it is written", []string{"GPU-a::01"}, `"GPU-a::01" is not a device`},
		{"something behind it", []string{"GPU-a::0::0"}, `"GPU-a::0::0" is not a device`},
		{"past the last", []string{"GPU-a::12"}, "the GPU has 12 of them"},
		{"before the first", []string{"GPU-a::-1"}, "the GPU has 12 of them"},
		{"a number that is too large", []string{"GPU-a::99999999999999999999"}, "is not a device"},
		{"twice", []string{"GPU-a::0", "GPU-a::0"}, `duplicate device "GPU-a::0"`},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := allocate([]string{"GPU-b::5"}, test.ids)
			require.ErrorContains(t, err, test.want)
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
		})
	}
}

// largePlugin is a plugin of 16 GPUs with 20 replicas each.
func largePlugin() *Plugin {
	var uuids []string
	for i := range 16 {
		uuids = append(uuids, fmt.Sprintf("GPU-%08d-5151-4000-8000-000000000000", i))
	}
	plugin, _, _ := testPlugin(20, uuids...)
	return plugin
}

// From the server's start to the first message of its devices; 50 ms are allowed.
func BenchmarkFirstMessage(b *testing.B) {
	dir := shortDir(b)
	k := newKubelet(b, dir)
	for b.Loop() {
		stop := serve(b, dir, largePlugin())
		_, client := k.plugin(b)
		require.Len(b, watchDevices(b, client).next(b), 320)
		stop()
	}
}

// One container's Allocate over the socket; 1 ms is allowed.
func BenchmarkAllocate(b *testing.B) {
	plugin := largePlugin()
	client := connected(b, plugin)
	gpus, _ := plugin.GPUs.GPUs()
	r := &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{
		device{gpus[3].UUID, 7}.id(), device{gpus[15].UUID, 19}.id(),
	}}}}
	for b.Loop() {
		_, err := client.Allocate(context.Background(), r)
		require.NoError(b, err)
	}
}
