package nriplugin_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

func flock(t *testing.T, f *os.File) {
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
}

// setRequestTimeout changes the runtime's patience for one test. The adaptation
// keeps it in a global, so such tests don't run in parallel.
func setRequestTimeout(t *testing.T, d time.Duration) {
	adaptation.SetPluginRequestTimeout(d)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
}

// A plugin that is too slow answers with an error before the runtime gives up, and
// keeps its connection. What its late work claims is given back.
func TestSlowDecisionIsRefusedInTime(t *testing.T) {
	setRequestTimeout(t, 500*time.Millisecond)
	annotations := map[string]string{"hami.io/vgpu-devices-to-allocate": cardA + ",NVIDIA,1000,10:;" + cardB + ",NVIDIA,2000,20:;"}
	names := []grant.ContainerDevices{{Name: "a", Devices: 1}, {Name: "b", Devices: 1}}
	slow := make(chan struct{})
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
			<-slow // deaf to its context, as a hanging call is
			return names, nil
		})
	})
	ctr := newContainer("a")
	_, err := f.runtime.create(newPod("p", annotations), ctr)
	require.ErrorContains(t, err, "within the runtime's NRI timeout")
	require.NoError(t, f.plugin.Ready())

	close(slow)
	f.plugin.Wait()
	require.Empty(t, f.folders(), "the late claim is undone")

	spec, err := f.runtime.create(newPod("p", annotations), newContainer("a"))
	require.NoError(t, err, "the plugin is still connected")
	require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, cardNodes(spec))
}

// hangingPlugin is a real NRI plugin of our name that never answers: what the
// runtime sees of an agent that is stopped (SIGSTOP) in the middle of a request.
type hangingPlugin struct {
	*nriplugin.Plugin
	synced
	hang    chan struct{}
	entered chan struct{}
}

func TestLostRequestIsRejectedByTheValidator(t *testing.T) {
	setRequestTimeout(t, 300*time.Millisecond)
	for _, annotations := range []map[string]string{nil, hami(cardA, 1000, 10)} {
		r := newRuntime(t, "v2.4.2")
		config := newConfig(t)
		plugin, err := nriplugin.New(config)
		require.NoError(t, err)
		hanging := &hangingPlugin{Plugin: plugin, synced: newSynced(), hang: make(chan struct{}), entered: make(chan struct{}, 1)}
		stop := startStub(t, r, hanging)
		_, err = r.create(newPod("p", annotations), newContainer("main", "NVIDIA_VISIBLE_DEVICES=all"))
		require.Error(t, err, "a container whose request was lost is rejected")
		select {
		case <-hanging.entered:
		default:
			t.Fatal("the request never reached the plugin")
		}
		close(hanging.hang)
		stop()
	}
}

func (h *hangingPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	h.entered <- struct{}{}
	<-h.hang
	return nil, nil, nil
}

// The plugin subscribes to validation where the runtime has it, and only there: an
// older runtime refuses a plugin that asks for an event that it doesn't know.
func TestSubscriptionFollowsTheRuntimesVersion(t *testing.T) {
	for _, test := range []struct {
		nri  string
		want bool
	}{
		{"v0.8.0", false}, {"0.9.0", false}, {"v0.10.0", true}, {"0.11.0", true}, {"v0.12.2", true}, {"", false}, {"unknown", false},
	} {
		require.Equal(t, test.want, nriplugin.HasValidators(test.nri), test.nri)
	}
}

func TestReconnectAfterTheRuntimeRestarts(t *testing.T) {
	f := newFixture(t)
	kept, gone := newContainer("main"), newContainer("main")
	keptPod, gonePod := newPod("kept", hami(cardA, 1000, 10)), newPod("gone", hami(cardA, 1000, 10))
	_, err := f.runtime.create(keptPod, kept)
	require.NoError(t, err)
	_, err = f.runtime.create(gonePod, gone)
	require.NoError(t, err)
	require.Len(t, f.claims(), 2)

	f.runtime.shutDown()
	require.Eventually(t, func() bool { return f.plugin.Ready() != nil }, 5*time.Second, time.Millisecond)
	// It ended while nobody listened, and its Stop and Remove are never sent.
	delete(f.runtime.running, gone.Id)
	f.runtime.start(t, "v2.4.2")
	f.waitReady()
	require.Equal(t, []string{kept.Id}, f.claims())
	require.Equal(t, []string{kept.Id}, f.folders())
	_, err = f.runtime.create(newPod("new", hami(cardA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
}

// The state folder was wiped while containers ran: their claims come back from the
// runtime's list.
func TestLostLedgerIsRestored(t *testing.T) {
	f := newFixture(t)
	pod, ctr := newPod("p", hami(cardA, 50000, 50)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("none", nil), newContainer("main"))
	require.NoError(t, err)
	f.stop()
	require.NoError(t, os.RemoveAll(f.ledger.Folder(ctr.Id)))

	f.start()
	require.Equal(t, []string{ctr.Id}, f.claims())
	_, err = f.runtime.create(newPod("second", hami(cardA, 50000, 50)), newContainer("main"))
	require.Error(t, err, "what runs is not given away a second time")
}

// A runtime that accepts and says nothing, or answers the registration and never
// configures the plugin, must not stop it from trying again.
func TestHangingRegistrationIsGivenUp(t *testing.T) {
	for _, test := range []struct {
		description string
		serve       func(net.Conn)
	}{
		{"never answers", func(net.Conn) {}},
		{"registers and never configures", serveRegistration},
		{"registers and hangs up", func(c net.Conn) {
			serveRegistration(c)
			time.AfterFunc(50*time.Millisecond, func() { c.Close() })
		}},
	} {
		t.Run(test.description, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", socket)
			require.NoError(t, err)
			accepted := make(chan net.Conn, 16)
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					test.serve(conn)
					accepted <- conn
				}
			}()

			t.Cleanup(nriplugin.SetPatience(200*time.Millisecond, time.Second))
			plugin, err := nriplugin.New(newConfig(t))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- plugin.Run(ctx, socket) }()
			for range 3 {
				select {
				case conn := <-accepted:
					defer conn.Close()
				case <-time.After(20 * time.Second):
					t.Fatal("the plugin did not try again")
				}
			}
			require.Error(t, plugin.Ready())
			listener.Close()
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// serveRegistration answers a plugin's registration as a runtime does, and no more.
func serveRegistration(conn net.Conn) {
	mux := multiplex.Multiplex(conn)
	listener, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		return
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return
	}
	api.RegisterRuntimeService(server, registrar{})
	go func() { _ = server.Serve(context.Background(), listener) }()
}

type registrar struct{}

func (registrar) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	return &api.Empty{}, nil
}

func (registrar) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return &api.UpdateContainersResponse{}, nil
}

func TestSecondPluginCannotWidenAGrant(t *testing.T) {
	for _, test := range []struct {
		description string
		annotations map[string]string
		change      func(*api.ContainerAdjustment)
	}{
		{"another card", hami(cardA, 1000, 10), func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
		}},
		{"a card without a grant", nil, func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
		}},
		{"a CDI device without a grant", nil, func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: "nvidia.com/gpu=0"}) }},
		{"the variable without a grant", nil, func(a *api.ContainerAdjustment) { a.AddEnv("NVIDIA_VISIBLE_DEVICES", "all") }},
		{"other limits", hami(cardA, 1000, 10), func(a *api.ContainerAdjustment) {
			a.RemoveMount("/usr/local/vgpu/limits")
			a.AddMount(&api.Mount{Destination: "/usr/local/vgpu/limits", Source: "/etc/passwd", Type: "bind", Options: []string{"bind"}})
		}},
		{"another variable of ours", hami(cardA, 1000, 10), func(a *api.ContainerAdjustment) {
			a.RemoveEnv("NVIDIA_VISIBLE_DEVICES")
			a.AddEnv("NVIDIA_VISIBLE_DEVICES", "all")
		}},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t)
			startStubAs(t, f.runtime, "99", "other", &adjustingPlugin{newSynced(), test.change})
			_, err := f.runtime.create(newPod("p", test.annotations), newContainer("main"))
			require.ErrorContains(t, err, "another NRI plugin")
			require.Empty(t, f.folders())
		})
	}
}

type adjustingPlugin struct {
	synced
	change func(*api.ContainerAdjustment)
}

func (p *adjustingPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	p.change(a)
	return a, nil, nil
}
