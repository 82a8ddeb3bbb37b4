package nriplugin_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	nriversion "github.com/containerd/nri/pkg/version"
	"github.com/containerd/ttrpc"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

func flock(t *testing.T, f *os.File) {
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
}

// setRequestTimeout changes the runtime's patience for one test. The adaptation
// keeps it in a global, so such tests don't run in parallel.
func setRequestTimeout(t *testing.T, d time.Duration) {
	adaptation.SetPluginRequestTimeout(d)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(longTimeout) })
}

// newFixtureInTime is a fixture with a plugin that has to answer within d once it is connected.
func newFixtureInTime(t *testing.T, d time.Duration, change ...func(*nriplugin.Config)) *fixture {
	f := newFixture(t, change...)
	setRequestTimeout(t, d)
	return f
}

// A plugin that is too slow answers with an error before the runtime gives up, and
// keeps its connection. Its late claim is removed.
func TestSlowDecisionIsRefusedInTime(t *testing.T) {
	names := []grant.ContainerDevices{{Name: "a", Devices: 1}, {Name: "b", Devices: 1}}
	slow := make(chan struct{})
	f := newFixtureInTime(t, 2*time.Second, func(c *nriplugin.Config) {
		c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
			<-slow // deaf to its context, as a hanging call is
			return names, nil
		})
	})
	ctr := newContainer("a")
	_, err := f.runtime.create(newPod("p", twoPositions), ctr)
	require.ErrorContains(t, err, "within the runtime's NRI timeout")
	require.NoError(t, f.plugin.Ready())

	close(slow)
	f.plugin.Wait()
	require.Empty(t, f.dirs(), "the late claim is undone")

	spec, err := f.runtime.create(newPod("p", twoPositions), newContainer("a"))
	require.NoError(t, err, "the plugin is still connected")
	require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, gpuNodes(spec))
}

// A handler that hangs for good makes the process unhealthy, though each of its
// requests was answered in time.
func TestHangingHandlerIsNotLive(t *testing.T) {
	setRequestTimeout(t, 500*time.Millisecond) // by which the plugin judges its handlers
	hang := make(chan struct{})
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
			<-hang
			return nil, errors.New("too late")
		})
	})
	require.NoError(t, f.plugin.Live())
	_, err := f.runtime.create(newPod("p", twoPositions), newContainer("a"))
	require.Error(t, err)
	require.Eventually(t, func() bool { return f.plugin.Live() != nil }, time.Minute, time.Millisecond)
	close(hang)
	require.Eventually(t, func() bool { return f.plugin.Live() == nil }, time.Minute, time.Millisecond)
}

// twoPositions is a positional annotation that can be read only by a program that knows
// the order of the pod's containers.
var twoPositions = map[string]string{"hami.io/vgpu-devices-to-allocate": gpuA + ",NVIDIA,80000,10:;" + gpuB + ",NVIDIA,2000,20:;"}

// What runs can't be found out: nothing is granted until it can, for the GPU may be
// taken. Containers without a grant go on.
func TestNothingIsGrantedWhileWhatRunsIsUnknown(t *testing.T) {
	var known atomic.Bool
	known.Store(true)
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
			if !known.Load() {
				return nil, errors.New("the kubelet is down")
			}
			return []grant.ContainerDevices{{Name: "a", Devices: 1}, {Name: "b", Devices: 1}}, nil
		})
	})
	ctr := newContainer("a")
	_, err := f.runtime.create(newPod("p", twoPositions), ctr)
	require.NoError(t, err)
	f.stop()
	require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
	delete(ctr.Annotations, gpuapi.AnnotationShares) // as an earlier version created it
	known.Store(false)

	f.run()
	require.Eventually(t, func() bool { return f.runtime.proxy.connections() == 2 && f.plugin.Reconciled() != nil }, time.Minute, time.Millisecond)
	require.Error(t, f.plugin.Ready())
	_, err = f.runtime.create(newPod("second", hami(gpuA, 80000, 10)), newContainer("main"))
	require.ErrorContains(t, err, "the kubelet is down")
	spec, err := f.runtime.create(newPod("none", nil), newContainer("main", "NVIDIA_VISIBLE_DEVICES=all"))
	require.NoError(t, err)
	value, _ := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
	require.Equal(t, "void", value)

	known.Store(true)
	f.waitReady()
	require.Equal(t, []string{ctr.Id}, f.claims())
	_, err = f.runtime.create(newPod("second", hami(gpuA, 80000, 10)), newContainer("main"))
	require.ErrorContains(t, err, gpuA, "the GPU is taken")
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
	for _, annotations := range []map[string]string{nil, hami(gpuA, 1000, 10)} {
		r := newRuntime(t, "v2.4.2")
		config := newConfig(t)
		plugin, err := nriplugin.New(config)
		require.NoError(t, err)
		hanging := &hangingPlugin{Plugin: plugin, synced: newSynced(), hang: make(chan struct{}), entered: make(chan struct{}, 1)}
		stop := startStub(t, r, hanging)
		setRequestTimeout(t, 300*time.Millisecond)
		_, err = r.create(newPod("p", annotations), newContainer("main", "NVIDIA_VISIBLE_DEVICES=all"))
		require.Error(t, err, "a container is refused after its request was lost")
		adaptation.SetPluginRequestTimeout(longTimeout)
		select {
		case <-hanging.entered:
		case <-time.After(time.Minute):
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
		nri, runtime, version string
		want                  bool
	}{
		{"v0.8.0", "", "", false}, {"0.9.0", "", "", false}, {"v0.10.0", "", "", true}, {"0.11.0", "", "", true}, {"v0.12.2", "", "", true},
		{"v0.9.1-0.20250219030224-e597e7849f24", "", "", false}, {"", "", "", false}, {"unknown", "", "", false},

		// Inferred from the runtime's version, with and without a "v".
		{"0.0.0-unknown", "cri-o", "1.36.3", true}, {"", "cri-o", "1.36.3", true}, {"", "cri-o", "v1.34.0", true}, {"(devel)", "cri-o", "1.33.8", false}, {"", "cri-o", "1.36.0-dev", true},
		{"", "containerd", "2.2.0", true}, {"", "containerd", "v2.4.2", true}, {"", "containerd", "v2.2.0-k3s1", true}, {"", "containerd", "2.1.6", false},
		{"", "containerd", "1.7.24~ds1", false}, {"", "containerd", "v2.2.0-rc.0", false}, {"", "another", "3.0.0", false}, {"", "containerd", "dev", false},
	} {
		require.Equal(t, test.want, nriplugin.HasValidators(test.nri, test.runtime, test.version), "%+v", test)
	}
}

// noNRIVersion removes the version from what the runtime sends, as NRI before 0.11: the field gets a number without a
// meaning.
func noNRIVersion(sent []byte) []byte {
	version := nriversion.GetFromBuildInfo()
	field := func(number byte) []byte { return append([]byte{number<<3 | 2, byte(len(version))}, version...) }
	return bytes.ReplaceAll(sent, field(configureNRIVersion), field(15))
}

// configureNRIVersion is the field's number in ConfigureRequest.
const configureNRIVersion = 6

// CRI-O reports "1.36.3", and containerd can be built so: the plugin validates there too, so that a request that was
// lost is refused, and its container not created without a GPU.
func TestValidatesWhereTheVersionHasNoV(t *testing.T) {
	for name, version := range map[string]string{"cri-o": "1.36.3", "containerd": "2.2.0"} {
		s := &seen{handled: map[string]int{}}
		r := newRuntimeNamed(t, name, version)
		r.proxy.edit(noNRIVersion)
		f := connect(t, r, func(c *nriplugin.Config) { c.Observer = s })
		_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
		require.NoError(t, err)
		require.Contains(t, s.events(), "ValidateContainerAdjustment", name)
	}
}

// A runtime of an unknown version gets a plugin with validation, and one without if it closes the connection then. The next
// session is with validation again: the runtime may be newer, or have closed the first one for another reason.
func TestUnknownVersionIsTried(t *testing.T) {
	for _, rejects := range []bool{false, true} {
		s := &seen{handled: map[string]int{}}
		r := newRuntimeNamed(t, "another", "dev")
		first := true
		r.proxy.edit(func(sent []byte) []byte {
			if rejects && first && bytes.Contains(sent, []byte("Synchronize")) {
				first = false
				r.proxy.cut()
			}
			return noNRIVersion(sent)
		})
		f := connect(t, r, func(c *nriplugin.Config) { c.Observer = s })
		_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
		require.NoError(t, err)
		if rejects {
			require.NotContains(t, s.events(), "ValidateContainerAdjustment")
			r.proxy.cut()
			require.Eventually(t, func() bool { return f.plugin.Ready() != nil }, time.Minute, time.Millisecond)
			f.waitReady()
			_, err := f.runtime.create(newPod("q", hami(gpuA, 1000, 10)), newContainer("main"))
			require.NoError(t, err)
		}
		require.Contains(t, s.events(), "ValidateContainerAdjustment")
	}
}

// A runtime closes the connection before the answer to the registration arrived, which is sent beside Configure.
func TestUnknownVersionIsTriedWithoutRegistration(t *testing.T) {
	s := &seen{handled: map[string]int{}}
	r := newRuntimeNamed(t, "another", "dev")
	var pending []byte
	rejected := false
	r.proxy.edit(func(sent []byte) []byte {
		if rejected {
			return noNRIVersion(sent)
		}
		pending = append(pending, noNRIVersion(sent)...)
		if bytes.Contains(pending, []byte("Synchronize")) {
			rejected = true
			r.proxy.cut()
			return nil
		}
		passed := []byte{}
		for {
			const header = 8 // the connection's number, and the length of what follows
			if len(pending) < header || len(pending) < header+int(binary.BigEndian.Uint32(pending[4:])) {
				return passed
			}
			end := header + int(binary.BigEndian.Uint32(pending[4:]))
			if binary.BigEndian.Uint32(pending) == uint32(multiplex.PluginServiceConn) {
				passed = append(passed, pending[:end]...)
			}
			pending = pending[end:]
		}
	})
	f := connect(t, r, func(c *nriplugin.Config) { c.Observer = s })
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
	require.NotContains(t, s.events(), "ValidateContainerAdjustment")
}

// A runtime that is slow has not rejected validators.
func TestUnknownVersionThatIsSlow(t *testing.T) {
	t.Cleanup(nriplugin.SetPatience(longTimeout, 100*time.Millisecond))
	s := &seen{handled: map[string]int{}}
	r := newRuntimeNamed(t, "another", "dev")
	r.proxy.edit(noNRIVersion)
	var slow sync.Once
	r.setOnSync(func() {
		slow.Do(func() {
			for r.proxy.connections() < 2 { // it ended the first one, and tries again
				time.Sleep(time.Millisecond)
			}
		})
	})
	f := connect(t, r, func(c *nriplugin.Config) { c.Observer = s })
	require.Greater(t, r.proxy.connections(), 1)
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
	require.Contains(t, s.events(), "ValidateContainerAdjustment")
}

func TestReconnectAfterTheRuntimeRestarts(t *testing.T) {
	f := newFixture(t)
	kept, gone := newContainer("main"), newContainer("main")
	keptPod, gonePod := newPod("kept", hami(gpuA, 1000, 10)), newPod("gone", hami(gpuA, 1000, 10))
	_, err := f.runtime.create(keptPod, kept)
	require.NoError(t, err)
	_, err = f.runtime.create(gonePod, gone)
	require.NoError(t, err)
	require.Len(t, f.claims(), 2)

	f.runtime.shutDown()
	require.Eventually(t, func() bool { return f.plugin.Ready() != nil }, time.Minute, time.Millisecond)
	// It ended while the agent was stopped, and its Stop and Remove are never sent.
	delete(f.runtime.running, gone.Id)
	f.runtime.start(t, "v2.4.2")
	f.waitReady()
	require.Equal(t, []string{kept.Id}, f.claims())
	require.Equal(t, []string{kept.Id}, f.dirs())
	_, err = f.runtime.create(newPod("new", hami(gpuA, 1000, 10)), newContainer("main"))
	require.NoError(t, err)
}

// A runtime does not list a container if it can't read its state after a restart. Such a container can
// continue to run with its GPU. It keeps its claim while it runs.
func TestUnlistedContainerThatRunsKeepsItsClaim(t *testing.T) {
	f := newFixture(t, writesLimits)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", hami(gpuA, 80000, 10)), ctr)
	require.NoError(t, err)
	// What a process of it does: it locks its slot's byte of the usage file.
	usage, err := os.OpenFile(limiter.UsagePath(f.ledger.Dir(ctr.Id)), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.FcntlFlock(usage.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<40 + 1, Len: 1}))
	f.stop()
	delete(f.runtime.running, ctr.Id)

	f.start()
	require.Equal(t, []string{ctr.Id}, f.claims())
	_, err = f.runtime.create(newPod("second", hami(gpuA, 80000, 10)), newContainer("main"))
	require.ErrorContains(t, err, gpuA)

	f.stop()
	require.NoError(t, usage.Close())
	f.start()
	require.Empty(t, f.claims())
}

// The claim of an unlisted container stays if its usage file can't be read. Without a usage
// file no process of it has a GPU.
func TestUnlistedContainerOfWhichNothingIsKnownKeepsItsClaim(t *testing.T) {
	f := newFixture(t, writesLimits)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", hami(gpuA, 80000, 10)), ctr)
	require.NoError(t, err)
	f.stop()
	delete(f.runtime.running, ctr.Id)
	usage := limiter.UsagePath(f.ledger.Dir(ctr.Id))
	require.NoError(t, os.Remove(usage))
	require.NoError(t, os.Symlink("limits", usage)) // it can't be opened

	f.start()
	require.Equal(t, []string{ctr.Id}, f.claims())

	f.stop()
	require.NoError(t, os.Remove(usage))
	f.start()
	require.Empty(t, f.claims())
}

// The state directory was wiped while containers ran: their claims come back from the
// runtime's list.
func TestLostLedgerIsRestored(t *testing.T) {
	f := newFixture(t)
	pod, ctr := newPod("p", hami(gpuA, 50000, 50)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("none", nil), newContainer("main"))
	require.NoError(t, err)
	f.stop()
	require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))

	f.start()
	require.Equal(t, []string{ctr.Id}, f.claims())
	_, err = f.runtime.create(newPod("second", hami(gpuA, 50000, 50)), newContainer("main"))
	require.Error(t, err, "what runs is not given away a second time")
}

// The plugin tries again after a runtime accepts and does not answer, or answers the registration and never
// configures the plugin.
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
				case <-time.After(time.Minute):
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
		change      func(*api.ContainerAdjustment, *api.Container)
	}{
		{"another GPU", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
		}},
		{"a GPU without a grant", nil, func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
		}},
		{"a CDI device without a grant", nil, func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddCDIDevice(&api.CDIDevice{Name: "nvidia.com/gpu=0"})
		}},
		{"the variable without a grant", nil, func(a *api.ContainerAdjustment, _ *api.Container) { a.AddEnv("NVIDIA_VISIBLE_DEVICES", "all") }},
		{"other limits", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, _ *api.Container) {
			a.RemoveMount("/.gpuslice")
			a.AddMount(&api.Mount{Destination: "/.gpuslice", Source: "/etc/passwd", Type: "bind", Options: []string{"bind"}})
		}},
		{"a request to NVIDIA's runtime by a mount", nil, func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddMount(&api.Mount{Destination: "/var/run/nvidia-container-devices/all", Source: "/dev/null", Type: "bind", Options: []string{"bind"}})
		}},
		{"a request by an annotation", nil, func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddAnnotation("cdi.k8s.io/x", "nvidia.com/gpu=all")
		}},
		{"its limits, writable", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, ctr *api.Container) {
			for _, m := range ctr.GetMounts() { // as the first plugin has adjusted them
				if m.GetDestination() == "/.gpuslice" {
					a.RemoveMount(m.GetDestination())
					a.AddMount(&api.Mount{Destination: m.GetDestination(), Source: m.GetSource(), Type: "bind", Options: []string{"bind", "rw"}})
				}
			}
		}},
		{"other limits by another spelling", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddMount(&api.Mount{Destination: "/.gpuslice/../.gpuslice/limits", Source: "/etc/passwd", Type: "bind", Options: []string{"bind"}})
		}},
		{"another preload by another spelling", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, _ *api.Container) {
			a.AddMount(&api.Mount{Destination: "/etc/../etc/ld.so.preload", Source: "/etc/passwd", Type: "bind", Options: []string{"bind"}})
		}},
		{"another variable of ours", hami(gpuA, 1000, 10), func(a *api.ContainerAdjustment, _ *api.Container) {
			a.RemoveEnv("NVIDIA_VISIBLE_DEVICES")
			a.AddEnv("NVIDIA_VISIBLE_DEVICES", "all")
		}},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t)
			startStubAs(t, f.runtime, "99", "other", &adjustingPlugin{newSynced(), test.change})
			_, err := f.runtime.create(newPod("p", test.annotations), newContainer("main"))
			require.ErrorContains(t, err, "another NRI plugin")
			require.Empty(t, f.dirs())
		})
	}
}

type adjustingPlugin struct {
	synced
	change func(*api.ContainerAdjustment, *api.Container)
}

func (p *adjustingPlugin) CreateContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	p.change(a, ctr)
	return a, nil, nil
}
