package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/granttest"
	"github.com/gpuslice/gpuslice/test/loopback"
)

// The simulated driver and the limiter, built once.
var built = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	out := filepath.Join(root, "build")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(out, ".lock")) // one test program builds at a time
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	for _, dir := range []string{"limiter/src", "testdata/simdriver"} {
		cmd := exec.Command("make", "-s", "-C", filepath.Join(root, dir), "OUT="+out)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return "", err
		}
	}
	return out, nil
})

type testAgent struct{ options }

// testOptions are an agent's options with everything in a directory of the test's, the
// simulated driver, and no container runtime.
func testOptions(t *testing.T) testAgent {
	build, err := built()
	require.NoError(t, err)
	dir := t.TempDir()
	t.Setenv("SIMGPU_STATE", filepath.Join(dir, "sim"))
	out, err := exec.Command(filepath.Join(build, "sim", "simctl"), "init", "--gpu", "H200").CombinedOutput()
	require.NoError(t, err, "%s", out)

	o, started, _, _, stderr := agent("--node-name=node-1", "--state-dir="+filepath.Join(dir, "run"),
		"--library-dir="+filepath.Join(dir, "lib"), "--library="+filepath.Join(build, "lib", "libvgpu.so"),
		"--nvml-library="+filepath.Join(build, "sim", "libnvidia-ml.so.1"), "--nri-socket="+shortDir(t)+"/nri.sock",
		"--cdi-spec-dirs="+dir, "--health-address="+loopback.FreeAddress(t), "--metrics-address="+loopback.FreeAddress(t), "--device-plugin-dir=", "--node-config-file=")
	require.True(t, started, stderr)
	return testAgent{o}
}

// args are the options on a command line.
func (o testAgent) args() []string {
	return []string{
		"--node-name=" + o.NodeName, "--state-dir=" + o.StateDir, "--library-dir=" + o.LibraryDir, "--library=" + o.Library,
		"--nvml-library=" + o.NVMLLibrary, "--nri-socket=" + o.NRISocket, "--cdi-spec-dirs=" + o.CDISpecDirs[0], "--health-address=" + o.HealthAddress,
		"--metrics-address=" + o.MetricsAddress,
		"--device-plugin-dir=" + o.DevicePluginDir, "--node-config-file=" + o.NodeConfigFile,
	}
}

// run runs the agent in this process; stop ends it and returns its error.
func (o testAgent) run(t *testing.T) (stop func() error, log *logBuffer) {
	ctx, cancel := context.WithCancel(context.Background())
	log = &logBuffer{}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o.options, slog.New(slog.NewTextHandler(log, nil))) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Errorf("the agent does not end; its log:\n%s", log)
			return nil
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop, log
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

type answered struct {
	status int
	body   string
}

func get(address, path string) answered {
	response, err := http.Get("http://" + address + path)
	if err != nil {
		return answered{body: err.Error()}
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return answered{response.StatusCode, string(body)}
}

// shortDir is a directory with a path that is short enough for a socket.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "gsa")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// startRuntime plays the container runtime: a socket that plugins connect to.
func startRuntime(t *testing.T, socket string) *adaptation.Adaptation {
	none := filepath.Join(filepath.Dir(socket), "none")
	r, err := adaptation.New("containerd", "v2.4.2",
		func(ctx context.Context, cb adaptation.SyncCB) error { _, err := cb(ctx, nil, nil); return err },
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(r.Stop)
	return r
}

type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// On a host for docker the agent needs no NRI socket, takes its values from the operator's configuration, and is ready.
func TestAgentWithoutNRI(t *testing.T) {
	o := testOptions(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "runtime.yaml")
	require.NoError(t, os.WriteFile(config, []byte("stateDir: "+o.StateDir+"\nlibraryDir: "+o.LibraryDir+"\ncdiSpecDirs: ["+o.CDISpecDirs[0]+"]\ndeviceSplitCount: 3\nmemoryScaling: 2\nnvmlLibrary: "+o.NVMLLibrary+"\n"), 0o644))
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Setenv(runtimeConfigEnv, config)
	args := []string{"--nri-socket=", "--device-plugin-dir=", "--pod-resources-socket=", "--node-config-file=", "--kubernetes-api=off",
		"--health-address=" + o.HealthAddress, "--metrics-address=" + o.MetricsAddress}
	taken, started, _, _, stderr := agent(args...)
	require.True(t, started, stderr)
	assert.Equal(t, 3, taken.SplitCount)
	assert.Equal(t, o.StateDir, taken.StateDir)

	// gpuslice-runtime installs the limiter.
	missing := taken
	missing.MetricsAddress = ""
	err := run(context.Background(), missing, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "install gpuslice again (gpuslice install)")
	_, _, err = oci.InstallLibrary(o.Library, o.LibraryDir)
	require.NoError(t, err)
	_, err = oci.InstallStubs(o.Library, o.LibraryDir)
	require.NoError(t, err)

	stop, log := testAgent{taken}.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)
	published, err := node.Read(o.StateDir)
	require.NoError(t, err)
	require.Len(t, published.Devices, 1)
	assert.Equal(t, 3, published.Devices[0].Replicas)
	assert.Equal(t, int64(2*143771), published.Devices[0].MemoryMiB)
	assert.NotContains(t, log.String(), "NRI connection")
	require.NoError(t, stop())

	require.NoError(t, os.WriteFile(config, []byte("maximun: 1\n"), 0o644))
	_, started, _, _, stderr = agent(args...)
	assert.False(t, started)
	assert.Contains(t, stderr, config+":1")
}

// An agent's life: it waits for the runtime and logs it, connects, publishes its
// GPUs, keeps a second one out, and stops at a signal without open files.
func TestAgentsLife(t *testing.T) {
	o := testOptions(t)
	stop, log := o.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/healthz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)
	ready := get(o.HealthAddress, "/readyz")
	assert.Equal(t, 503, ready.status)
	assert.Contains(t, ready.body, "nri: not connected to the container runtime's NRI socket")

	startRuntime(t, o.NRISocket)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)
	published, err := node.Read(o.StateDir)
	require.NoError(t, err, "the GPUs are published before the agent is ready")
	assert.Equal(t, "node-1", published.Name)
	require.Len(t, published.Node.GPUs, 1)
	uuid := published.Node.GPUs[0].UUID
	assert.Equal(t, []node.Device{{UUID: uuid, GPU: uuid, MemoryMiB: 143771, CorePercent: 100, Replicas: 10}}, published.Devices)
	assert.Equal(t, int64(143771), published.Node.GPUs[0].MemoryMiB)
	assert.Equal(t, []string{uuid}, published.Topology.UUIDs, "how GPUs are connected, for gpuslice topology")

	second := o
	second.HealthAddress = loopback.FreeAddress(t)
	err = run(context.Background(), second.options, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "in use by another gpuslice-agent")
	assert.Equal(t, 200, get(o.HealthAddress, "/readyz").status, "the first one is not disturbed")

	require.NoError(t, stop())
	assert.Contains(t, log.String(), "msg=stopped")
	unlock, err := prepareStateDir(o.StateDir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	unlock()
	l, err := net.Listen("tcp", o.HealthAddress)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// The agent connects without a driver, and logs what is missing.
func TestAgentWithoutADriver(t *testing.T) {
	o := testOptions(t)
	o.NVMLLibrary = "/nonexistent/libnvidia-ml.so.1"
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	require.Eventually(t, func() bool {
		ready := get(o.HealthAddress, "/readyz")
		return ready.status == 503 && bytes.HasPrefix([]byte(ready.body), []byte("gpus: "))
	}, time.Minute, 5*time.Millisecond, "%v", log)
	assert.Contains(t, get(o.HealthAddress, "/readyz").body, "NVIDIA's driver")
	assert.Equal(t, 200, get(o.HealthAddress, "/healthz").status, "a restart would not help")
	require.NoError(t, stop())
}

// Errors are reported before the agent connects, and nothing is left running.
func TestAgentRefusesToStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	notALibrary := filepath.Join(t.TempDir(), "libvgpu.so")
	require.NoError(t, os.WriteFile(notALibrary, []byte("not ELF"), 0o600))
	for _, test := range []struct {
		description string
		change      func(*testAgent)
		want        string
	}{
		{"the address is taken", func(o *testAgent) { o.HealthAddress = taken.Addr().String() }, "--health-address: listen tcp"},
		{"no library", func(o *testAgent) { o.Library = "/nonexistent.so" }, "--library"},
		{"not a library", func(o *testAgent) { o.Library = notALibrary }, notALibrary + " is not an ELF file"},
		{"the state directory is a file", func(o *testAgent) { o.StateDir = notALibrary }, "--state-dir"},
	} {
		t.Run(test.description, func(t *testing.T) {
			o := testOptions(t)
			test.change(&o)
			require.ErrorContains(t, run(context.Background(), o.options, slog.New(slog.DiscardHandler)), test.want)
		})
	}
}

// A file that is followed may be bad at the start, as later: the agent connects, grants
// are refused, and /readyz reports the error.
func TestAgentStartsWithBadFiles(t *testing.T) {
	for _, test := range []struct {
		description string
		change      func(*testAgent)
		want        string
	}{
		{"no node configuration", func(o *testAgent) { o.NodeConfigFile = "/nonexistent/config.json" }, "node-config: node configuration: open /nonexistent/config.json"},
		{"a bad node configuration", func(o *testAgent) { o.NodeConfigFile = "/dev/null" }, "node-config: node configuration /dev/null"},
		{"no grant keys", func(o *testAgent) { o.GrantPublicKeyFile = "/nonexistent/keys" }, "grant-keys: rejecting all grants: no signing keys loaded: open /nonexistent/keys"},
		{"bad grant keys", func(o *testAgent) { o.GrantPublicKeyFile = "/dev/null" }, "grant-keys: rejecting all grants"},
	} {
		t.Run(test.description, func(t *testing.T) {
			o := testOptions(t)
			test.change(&o)
			runtime := startRuntime(t, o.NRISocket)
			stop, log := o.run(t)
			require.Eventually(t, func() bool { return contains(log, `"connected to the container runtime"`) }, time.Minute, 5*time.Millisecond, "%v", log)
			ready := get(o.HealthAddress, "/readyz")
			assert.Equal(t, 503, ready.status)
			assert.Contains(t, ready.body, test.want)
			assert.Equal(t, 200, get(o.HealthAddress, "/healthz").status, "a restart would not help")

			block := runtime.BlockPluginSync()
			_, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
				Pod: &api.PodSandbox{Id: "s", Uid: "u-1", Name: "p", Namespace: "ns", Annotations: map[string]string{
					gpuapi.AnnotationGrant: `{"version":1,"containers":{"main":[{"uuid":"GPU-00000001-5151-4000-8000-000000000001","memoryMiB":1,"cores":1}]}}`,
				}},
				Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main"},
			})
			block.Unblock()
			require.Error(t, err, "no grant")
			require.NoError(t, stop())
		})
	}
}

var quietLog = slog.New(slog.DiscardHandler)

func contains(log *logBuffer, text string) bool { return strings.Contains(log.String(), text) }

// The agent's key file reaches its decisions, and is followed. The grant names a GPU
// that is not there, so that one which verifies is refused for that.
func TestGrantPublicKeyFile(t *testing.T) {
	const payload = `{"version":1,"containers":{"main":[{"uuid":"GPU-0a000000-1111-2222-3333-444455556666","memoryMiB":1,"cores":1}]}}`
	o := testOptions(t)
	o.GrantPublicKeyFile = filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(o.GrantPublicKeyFile, []byte(granttest.PublicKeys("old")), 0o444))
	runtime := startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)

	key := granttest.SigningKey("new")
	signature, err := key.Sign("u-1", o.NodeName, payload)
	require.NoError(t, err)
	refusal := func(annotations map[string]string) string {
		// As containerd does: a plugin is asked from the end of its synchronisation on.
		defer runtime.BlockPluginSync().Unblock()
		_, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
			Pod:       &api.PodSandbox{Id: "s", Uid: "u-1", Name: "p", Namespace: "ns", Annotations: annotations},
			Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main"},
		})
		require.Error(t, err)
		return err.Error()
	}
	signed := map[string]string{gpuapi.AnnotationGrant: payload, gpuapi.AnnotationSignature: signature}
	require.Contains(t, refusal(map[string]string{gpuapi.AnnotationGrant: payload}), "signed grants only")
	require.Contains(t, refusal(signed), "was made with key "+key.ID())

	require.NoError(t, os.WriteFile(o.GrantPublicKeyFile+".new", []byte(granttest.PublicKeys("old", "new")), 0o444))
	require.NoError(t, os.Rename(o.GrantPublicKeyFile+".new", o.GrantPublicKeyFile))
	require.Eventually(t, func() bool { return strings.Contains(refusal(signed), "no such GPU") }, time.Minute, 100*time.Millisecond)
	require.NoError(t, stop())
}

// The policy reaches the decisions: with "share" a container's replicas are read, and
// one of a GPU that is not there refuses it.
func TestUnscheduledPolicy(t *testing.T) {
	for policy, refused := range map[string]bool{"deny": false, "share": true} {
		t.Run(policy, func(t *testing.T) {
			o := testOptions(t)
			o.UnscheduledPolicy = policy
			runtime := startRuntime(t, o.NRISocket)
			stop, log := o.run(t)
			require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)
			// As containerd does: a plugin is asked from the end of its synchronisation on.
			block := runtime.BlockPluginSync()
			_, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
				Pod: &api.PodSandbox{Id: "s", Uid: "u-1", Name: "p", Namespace: "ns"},
				Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main", Annotations: map[string]string{
					gpuapi.AnnotationReplicas: "GPU-0a000000-1111-2222-3333-444455556666::0",
				}},
			})
			block.Unblock()
			if refused {
				require.ErrorContains(t, err, "no such GPU")
			} else {
				assert.NoError(t, err)
			}
			require.NoError(t, stop())
		})
	}
}
