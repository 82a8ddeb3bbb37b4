package nriplugin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	rgen "github.com/opencontainers/runtime-tools/generate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
)

func TestMain(m *testing.M) {
	nrilog.Set(quietLogger{}) // the adaptation logs each event
	adaptation.SetPluginRequestTimeout(longTimeout)
	adaptation.SetPluginRegistrationTimeout(longTimeout)
	if dir := os.Getenv(agentEnv); dir != "" {
		fmt.Fprintln(os.Stderr, agentMain(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

type quietLogger struct{}

func (quietLogger) Debugf(context.Context, string, ...any) {}
func (quietLogger) Infof(context.Context, string, ...any)  {}
func (quietLogger) Warnf(context.Context, string, ...any)  {}
func (quietLogger) Errorf(context.Context, string, ...any) {}

// nodeName is the node of the tests' grants.
const nodeName = "node-1"

// The tests' GPUs: two of 80 GiB with 10 replicas.
const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
)

// runtime plays containerd: it holds containers, relays their events to plugins by
// the real NRI adaptation and the real socket, and edits their OCI specs as
// containerd does.
type runtime struct {
	*adaptation.Adaptation
	name    string
	socket  string // where plugins connect
	proxy   *proxy
	mu      sync.Mutex
	pods    map[string]*api.PodSandbox
	running map[string]*api.Container
	// onSync is called when the runtime is about to synchronise a plugin; nil: nothing.
	onSync func()
}

// newRuntime starts an adaptation that calls itself containerd of the given version.
func newRuntime(t testing.TB, version string) *runtime {
	return newRuntimeNamed(t, "containerd", version)
}

func newRuntimeNamed(t testing.TB, name, version string) *runtime {
	dir, err := os.MkdirTemp("", "nri") // t.TempDir's path is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &runtime{
		name: name, socket: filepath.Join(dir, "nri.sock"),
		pods: map[string]*api.PodSandbox{}, running: map[string]*api.Container{},
	}
	r.proxy = newProxy(t, r.socket, r.socket+".backend")
	r.start(t, version)
	return r
}

// shutDown ends the runtime as the end of its process does.
func (r *runtime) shutDown() {
	r.Stop()
	r.proxy.cut()
}

func (r *runtime) start(t testing.TB, version string) {
	var err error
	none := filepath.Join(filepath.Dir(r.socket), "none")
	r.Adaptation, err = adaptation.New(r.name, version, r.synchronize,
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(r.socket+".backend"), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none),
	)
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(r.Stop)
}

// setOnSync sets what is called when the runtime is about to synchronise a plugin.
func (r *runtime) setOnSync(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onSync = do
}

func (r *runtime) synchronize(ctx context.Context, cb adaptation.SyncCB) error {
	r.mu.Lock()
	var pods []*api.PodSandbox
	for _, p := range r.pods {
		pods = append(pods, p)
	}
	var ctrs []*api.Container
	for _, c := range r.running {
		ctrs = append(ctrs, c)
	}
	onSync := r.onSync
	r.mu.Unlock()
	if onSync != nil {
		onSync()
	}
	_, err := cb(ctx, pods, ctrs)
	return err
}

// dropEndedPlugins makes the runtime forget plugins that have ended. It refuses the next container otherwise, if it
// has not noticed the end of a connection by then.
func (r *runtime) dropEndedPlugins() {
	_ = r.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: newPod("none", nil), Container: newContainer("none")})
}

// create relays a creation and returns the edited spec, as containerd would hand it to runc.
func (r *runtime) create(pod *api.PodSandbox, ctr *api.Container) (*rspec.Spec, error) {
	defer r.BlockPluginSync().Unblock()
	ctr.PodSandboxId = pod.GetId()
	ctr.Annotations = maps.Clone(ctr.Annotations) // the adaptation writes into it
	response, err := r.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: ctr})
	if err != nil {
		r.remove(pod, ctr) // containerd's UndoCreateContainer
		return nil, err
	}
	spec := &rspec.Spec{Annotations: maps.Clone(ctr.Annotations), Process: &rspec.Process{Env: ctr.Env}, Linux: &rspec.Linux{Resources: &rspec.LinuxResources{}}}
	for _, m := range ctr.Mounts {
		spec.Mounts = append(spec.Mounts, m.ToOCI(nil))
	}
	if err := generate.SpecGenerator(&rgen.Generator{Config: spec}).Adjust(response.GetAdjust()); err != nil {
		return nil, err
	}
	ctr.Mounts, ctr.Annotations = api.FromOCIMounts(spec.Mounts), spec.Annotations
	ctr.Env = spec.Process.Env
	ctr.State = api.ContainerState_CONTAINER_RUNNING
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[pod.GetId()], r.running[ctr.GetId()] = pod, ctr
	return spec, nil
}

func (r *runtime) stop(pod *api.PodSandbox, ctr *api.Container) {
	r.mu.Lock()
	delete(r.running, ctr.GetId())
	r.mu.Unlock()
	_, _ = r.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: ctr})
}

func (r *runtime) remove(pod *api.PodSandbox, ctr *api.Container) {
	r.stop(pod, ctr)
	_ = r.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: pod, Container: ctr})
}

// fixture is a plugin that is connected to a runtime, and what it works with.
type fixture struct {
	t       testing.TB
	runtime *runtime
	plugin  *nriplugin.Plugin
	ledger  *ledger.Ledger
	config  nriplugin.Config
	stop    func()
}

// newConfig is a plugin's configuration with two GPUs, resolved by a CDI registry
// of two lines.
func newConfig(t testing.TB) nriplugin.Config {
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	return configOf(store)
}

func configOf(store *ledger.Ledger) nriplugin.Config {
	gpus := map[string]grant.GPU{
		gpuA: {UUID: gpuA, MemoryMiB: 81920, CorePercent: 100, Replicas: 10},
		gpuB: {UUID: gpuB, MemoryMiB: 81920, CorePercent: 100, Replicas: 10},
	}
	settings := oci.Settings{LibraryPath: "/var/lib/gpuslice/lib/libvgpu-0.so", PreloadPath: "/var/lib/gpuslice/lib/ld.so.preload"}
	return nriplugin.Config{
		NodeName: nodeName,
		Ledger:   store,
		GPUs:     func() map[string]grant.GPU { return gpus },
		Populate: func(dir string, _ ledger.Claim) error {
			if err := os.MkdirAll(limiter.FilesDir(dir), 0o755); err != nil {
				return err
			}
			return os.WriteFile(limiter.LimitsPath(dir), nil, 0o444)
		},
		Settings: func() oci.Settings { return settings },
		Devices:  fakeDevices{},
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// newFixture connects a plugin and waits until it is ready.
func newFixture(t testing.TB, change ...func(*nriplugin.Config)) *fixture {
	return connect(t, newRuntime(t, "v2.4.2"), change...)
}

func connect(t testing.TB, r *runtime, change ...func(*nriplugin.Config)) *fixture {
	f := &fixture{t: t, runtime: r, config: newConfig(t)}
	for _, c := range change {
		c(&f.config)
	}
	f.ledger = f.config.Ledger
	f.start()
	return f
}

func (f *fixture) start() {
	f.run()
	f.waitReady()
}

// run starts the plugin and does not wait for it.
func (f *fixture) run() {
	if f.plugin != nil {
		f.runtime.dropEndedPlugins()
	}
	var err error
	f.plugin, err = nriplugin.New(f.config)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.plugin.Run(ctx, f.runtime.socket) }()
	var once sync.Once
	f.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				f.t.Errorf("plugin: %v", err)
			}
		})
	}
	f.t.Cleanup(f.stop)
}

func (f *fixture) waitReady() {
	if !assert.Eventually(f.t, func() bool { return f.plugin.Ready() == nil }, 2*longTimeout, 2*time.Millisecond) {
		require.NoError(f.t, f.plugin.Ready())
	}
	f.runtime.BlockPluginSync().Unblock() // the runtime sends nothing to a plugin before it is in its list
}

// fakeDevices is a CDI registry of the two GPUs.
type fakeDevices struct{}

func (fakeDevices) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	edits := &cdispec.ContainerEdits{
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
		DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}},
		Mounts:      []*cdispec.Mount{{HostPath: "/usr/lib/libcuda.so.1", ContainerPath: "/usr/lib/libcuda.so.1", Options: []string{"ro", "bind"}}},
		Hooks:       []*cdispec.Hook{{HookName: "createContainer", Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}},
	}
	for _, uuid := range uuids {
		minor, ok := map[string]int64{gpuA: 0, gpuB: 1, migA: 2, migB: 2}[uuid]
		if !ok {
			return nil, fmt.Errorf("no CDI spec names %s", uuid)
		}
		edits.DeviceNodes = append(edits.DeviceNodes, &cdispec.DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", minor), Type: "c", Major: 195, Minor: minor})
	}
	return edits, nil
}

// newPod is a pod with annotations.
func newPod(name string, annotations map[string]string) *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox-" + name, Uid: "uid-" + name, Name: name, Namespace: "default", Annotations: annotations}
}

var lastID atomic.Int64

// newContainer is a container with an id of its own.
func newContainer(name string, env ...string) *api.Container {
	return &api.Container{Id: fmt.Sprintf("c%d-%s", lastID.Add(1), name), Name: name, Env: append([]string{"PATH=/bin"}, env...)}
}

// hami is HAMi's annotation for a pod with one container.
func hami(uuid string, memoryMiB, cores int) map[string]string {
	return map[string]string{"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,%d:;", uuid, memoryMiB, cores)}
}

// named is our annotation for one container of a pod.
func named(container, uuid string, memoryMiB, cores int) map[string]string {
	return map[string]string{"gpuslice.io/grant": fmt.Sprintf(
		`{"version":1,"node":%q,"containers":{%q:[{"uuid":%q,"memoryMiB":%d,"cores":%d}]}}`, nodeName, container, uuid, memoryMiB, cores)}
}

// claims are the ids of the containers that hold something.
func (f *fixture) claims() []string {
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(f.t, err)
	ids := []string{}
	for _, c := range snapshot.Claims() {
		ids = append(ids, c.ContainerID)
	}
	return ids
}

// directories are the names in the ledger's containers directory.
func (f *fixture) dirs() []string {
	entries, err := os.ReadDir(filepath.Dir(f.ledger.Dir("x")))
	require.NoError(f.t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// envOf is a variable of a spec, and how often it is there.
func envOf(spec *rspec.Spec, name string) (value string, times int) {
	for _, e := range spec.Process.Env {
		if k, v, _ := strings.Cut(e, "="); k == name {
			value = v
			times++
		}
	}
	return value, times
}

// sourceOf is where a mount of a spec comes from.
func sourceOf(spec *rspec.Spec, destination string) string {
	source := ""
	for _, m := range spec.Mounts {
		if filepath.Clean(m.Destination) == destination {
			source = m.Source
		}
	}
	return source
}

// gpuNodes are the device nodes of GPUs in a spec.
func gpuNodes(spec *rspec.Spec) []string {
	var nodes []string
	for _, d := range spec.Linux.Devices {
		if strings.HasPrefix(d.Path, "/dev/nvidia") {
			nodes = append(nodes, d.Path)
		}
	}
	return nodes
}
