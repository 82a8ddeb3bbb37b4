package dra_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuslice/gpuslice/dra"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
	uid  = "11111111-0000-4000-8000-00000000000a"
)

func named(uid string) []kubeletplugin.NamespacedObject {
	return []kubeletplugin.NamespacedObject{{UID: types.UID(uid), NamespacedName: types.NamespacedName{Namespace: "ns", Name: "c"}}}
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("DRA_TEST_DIR"); dir != "" {
		churn(dir)
	}
	os.Exit(m.Run())
}

func device(uuid string) devices.Device {
	return devices.Device{
		Capacity: grant.GPU{UUID: uuid, MemoryMiB: 143771, CorePercent: 100, Replicas: 10},
		GPU:      hardware.GPU{UUID: uuid, Model: "NVIDIA H200", NUMANode: hardware.NUMAUnknown},
	}
}

// result is a share of a GPU as kube-scheduler allocates it.
func result(request, uuid string, mib int64) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: "gpu.gpuslice.io", Pool: "node-1/h200", Device: device(uuid).Name(), ShareID: new(types.UID("share-" + request)),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(mib<<20, resource.BinarySI), "cores": resource.MustParse("30"), "slots": resource.MustParse("1"),
		},
	}
}

func claim(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: uid},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}},
	}
}

// fixture is a driver, the kubelet's directory and what the driver asks.
type fixture struct {
	t         *testing.T
	dir       string
	config    dra.Config
	client    *fake.Clientset
	driver    *dra.Driver
	mu        sync.Mutex
	node      devices.Node
	unknown   bool
	notReady  error
	noRoom    error
	used      bool
	asked     []string // the requests of ResourceClaims of the last question for room
	questions int
}

func newFixture(t *testing.T) *fixture {
	dir, err := os.MkdirTemp("", "dra") // t.TempDir's path is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fixture{t: t, dir: dir, node: devices.Node{Name: "node-1", Devices: []devices.Device{device(gpuA), device(gpuB)}}}
	f.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid"}})
	store, err := prepared.Open(dir)
	require.NoError(t, err)
	f.config = dra.Config{
		NodeName: "node-1", Client: f.client, KubeletDir: filepath.Join(dir, "kubelet"), CDIDir: filepath.Join(dir, "cdi"), Prepared: store,
		Patience: time.Minute, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Node: func() (devices.Node, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			n := f.node
			n.Devices = slices.Clone(n.Devices) // tests change them
			return n, !f.unknown
		},
		Ready: func() error { f.mu.Lock(); defer f.mu.Unlock(); return f.notReady },
		Room: func(_ context.Context, _ []grant.Share, claims []string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.asked = claims
			f.questions++
			return f.noRoom
		},
		InUse: func(context.Context, []string) (bool, error) { f.mu.Lock(); defer f.mu.Unlock(); return f.used, nil },
	}
	f.driver = dra.New(f.config)
	return f
}

func (f *fixture) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fixture) impatient() *fixture {
	f.config.Patience = 50 * time.Millisecond
	f.driver = dra.New(f.config)
	return f
}

func (f *fixture) prepare(c *resourceapi.ResourceClaim) (answer string, err error) {
	results, err := f.driver.PrepareResourceClaims(f.t.Context(), []*resourceapi.ResourceClaim{c})
	require.NoError(f.t, err)
	require.Len(f.t, results, 1)
	r := results[c.UID]
	if r.Err != nil {
		require.Empty(f.t, r.Devices)
		return "", r.Err
	}
	text, err := json.Marshal(r.Devices)
	require.NoError(f.t, err)
	return string(text), nil
}

func (f *fixture) unprepare(uid string) error {
	results, err := f.driver.UnprepareResourceClaims(f.t.Context(), named(uid))
	require.NoError(f.t, err)
	require.Len(f.t, results, 1)
	return results[types.UID(uid)]
}

// files are all files of prepared ResourceClaims.
func (f *fixture) files() (names []string) {
	for _, pattern := range []string{"prepared/*", "cdi/*"} {
		found, err := filepath.Glob(filepath.Join(f.dir, pattern))
		require.NoError(f.t, err)
		names = append(names, found...)
	}
	return names
}

func TestPrepare(t *testing.T) {
	f := newFixture(t)
	c := claim(result("gpu", gpuB, 2000), result("gpu", gpuA, 1000), result("other/small", gpuA, 500))
	first, err := f.prepare(c)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"Requests":["gpu"],"PoolName":"node-1/h200","DeviceName":"gpu-bbbbbbbb-0000-4000-8000-000000000002","CDIDeviceIDs":["gpuslice.io/claim=`+uid+`.gpu"],"ShareID":"share-gpu","Metadata":null},
		{"Requests":["gpu"],"PoolName":"node-1/h200","DeviceName":"gpu-aaaaaaaa-0000-4000-8000-000000000001","CDIDeviceIDs":null,"ShareID":"share-gpu","Metadata":null},
		{"Requests":["other"],"PoolName":"node-1/h200","DeviceName":"gpu-aaaaaaaa-0000-4000-8000-000000000001","CDIDeviceIDs":["gpuslice.io/claim=`+uid+`.other"],"ShareID":"share-other/small","Metadata":null}
	]`, first)
	record, err := f.config.Prepared.Read(uid)
	require.NoError(t, err)
	require.Equal(t, map[string][]grant.Share{
		"gpu":   {{UUID: gpuB, MemoryMiB: 2000, CorePercent: 30}, {UUID: gpuA, MemoryMiB: 1000, CorePercent: 30}},
		"other": {{UUID: gpuA, MemoryMiB: 500, CorePercent: 30}},
	}, record.Requests)
	require.Equal(t, []string{uid + ".gpu", uid + ".other"}, f.asked)

	// The CDI devices give a mount of the record, which can't be written, and nothing else.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(f.config.CDIDir), cdi.WithAutoRefresh(false))
	require.NoError(t, err)
	require.Empty(t, cache.GetErrors())
	spec := &rspec.Spec{}
	missing, err := cache.InjectDevices(spec, "gpuslice.io/claim="+uid+".gpu")
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, &rspec.Spec{Mounts: []rspec.Mount{{
		Source: f.config.Prepared.Path(uid), Destination: "/.gpuslice-claims/" + uid + ".gpu", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"},
	}}}, withoutType(spec))

	stat := func() (infos []os.FileInfo) {
		for _, file := range f.files() {
			info, err := os.Stat(file)
			require.NoError(t, err)
			infos = append(infos, info)
		}
		return infos
	}
	before := stat()
	require.Len(t, before, 2)
	for range 1000 {
		again, err := f.prepare(c.DeepCopy())
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	f.set(func() { f.used = true }) // a kubelet that restarted asks again for a ResourceClaim that a container has
	f.driver = dra.New(f.config)    // so does one after the agent restarted
	again, err := f.prepare(c)
	require.NoError(t, err)
	require.Equal(t, first, again)
	for i, info := range stat() {
		require.True(t, os.SameFile(before[i], info), "containers have mounted this file")
	}

	require.NoError(t, f.unprepare(uid))
	require.Empty(t, f.files())
	require.NoError(t, f.unprepare(uid), "again")
	require.NoError(t, f.unprepare("../../etc/passwd"), "never prepared")
	again, err = f.prepare(c)
	require.NoError(t, err)
	require.Equal(t, first, again)
}

// withoutType sets the type that versions of the library leave to the runtime.
func withoutType(spec *rspec.Spec) *rspec.Spec {
	for i := range spec.Mounts {
		spec.Mounts[i].Type = "bind"
	}
	return spec
}

// A request that can't be met now leaves nothing, and is met when it can be.
func TestPrepareWaits(t *testing.T) {
	for description, change := range map[string]func(f *fixture, bad bool){
		"the agent is not connected to the runtime": func(f *fixture, bad bool) {
			f.notReady = map[bool]error{true: errors.New("not connected")}[bad]
		},
		"the GPUs are not known": func(f *fixture, bad bool) { f.unknown = bad },
		"the GPU is not listed": func(f *fixture, bad bool) {
			f.node.Devices[0].Capacity.UUID = map[bool]string{true: gpuB, false: gpuA}[bad]
		},
		"a container still has it": func(f *fixture, bad bool) { f.noRoom = map[bool]error{true: errors.New("no room")}[bad] },
		"the node offers less now": func(f *fixture, bad bool) {
			f.node.Devices[0].Capacity.MemoryMiB = map[bool]int64{true: 1, false: 143771}[bad]
		},
	} {
		t.Run(description, func(t *testing.T) {
			f := newFixture(t)
			f.set(func() { change(f, true) })
			_, err := f.impatient().prepare(claim(result("gpu", gpuA, 1000)))
			require.Error(t, err)
			require.Empty(t, f.files())

			f.config.Patience = time.Minute
			f.driver = dra.New(f.config)
			done := make(chan error, 1)
			go func() { _, err := f.prepare(claim(result("gpu", gpuA, 1000))); done <- err }()
			// Others are served meanwhile.
			require.NoError(t, f.unprepare("22222222-0000-4000-8000-00000000000b"))
			f.set(func() { change(f, false) })
			require.NoError(t, <-done)
			require.Len(t, f.files(), 2)
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	f := newFixture(t) // with the patience of a minute: these do not wait
	for description, change := range map[string]func(*resourceapi.ResourceClaim){
		"admin access":  func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].AdminAccess = new(true) },
		"no capacities": func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].ConsumedCapacity = nil },
		"not allocated": func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil },
		"not ours":      func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Driver = "example.com" },
	} {
		c := claim(result("gpu", gpuA, 1000))
		change(c)
		_, err := f.prepare(c)
		require.ErrorIs(t, err, grant.ErrMalformed, description)
		require.Empty(t, f.files())
	}
	// The kubelet no longer waits.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := f.driver.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim(result("gpu", gpuA, 1000))})
	require.NoError(t, err)
	require.Error(t, results[uid].Err)
	require.Empty(t, f.files())
	// A UID that can't be a file's name.
	c := claim(result("gpu", gpuA, 1000))
	c.UID = "../x"
	_, err = f.prepare(c)
	require.Error(t, err)
	require.Empty(t, f.files())
}

// A ResourceClaim that was allocated again, while the kubelet missed its end.
func TestAllocatedAgain(t *testing.T) {
	f := newFixture(t)
	_, err := f.prepare(claim(result("gpu", gpuA, 1000)))
	require.NoError(t, err)
	f.set(func() { f.used = true })
	_, err = f.prepare(claim(result("gpu", gpuB, 1000)))
	require.ErrorContains(t, err, "prepared with other devices")
	record, err := f.config.Prepared.Read(uid)
	require.NoError(t, err)
	require.Equal(t, gpuA, record.Requests["gpu"][0].UUID)
	f.set(func() { f.used = false })
	_, err = f.prepare(claim(result("gpu", gpuB, 1000)))
	require.NoError(t, err)
	record, err = f.config.Prepared.Read(uid)
	require.NoError(t, err)
	require.Equal(t, gpuB, record.Requests["gpu"][0].UUID)

	require.NoError(t, os.WriteFile(f.config.Prepared.Path(uid), []byte("{"), 0o600))
	_, err = f.prepare(claim(result("gpu", gpuB, 1000)))
	require.NoError(t, err, "a damaged record is written again")
	_, err = f.config.Prepared.Read(uid)
	require.NoError(t, err)
}

// churn prepares and unprepares until it is killed.
func churn(dir string) {
	store, err := prepared.Open(dir)
	if err != nil {
		panic(err)
	}
	d := dra.New(dra.Config{
		NodeName: "node-1", CDIDir: filepath.Join(dir, "cdi"), Prepared: store, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Client: fake.NewClientset(),
		Node: func() (devices.Node, bool) {
			return devices.Node{Name: "node-1", Devices: []devices.Device{device(gpuA)}}, true
		},
		Ready: func() error { return nil },
		Room:  func(context.Context, []grant.Share, []string) error { return nil },
		InUse: func(context.Context, []string) (bool, error) { return false, nil },
	})
	for i := int64(1); ; i++ {
		results, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim(result("gpu", gpuA, 1+i%2))})
		if err == nil {
			err = results[uid].Err
		}
		if err != nil {
			panic(err)
		}
		if i%3 == 0 {
			_, _ = d.UnprepareResourceClaims(context.Background(), named(uid))
		}
		fmt.Print(".")
	}
}

// After a kill at any moment what is there is whole, a CDI spec has its record, and the next request is met.
func TestKilledWhilePreparing(t *testing.T) {
	f := newFixture(t)
	self, err := os.Executable()
	require.NoError(t, err)
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		command := exec.Command(self)
		command.Env = append(os.Environ(), "DRA_TEST_DIR="+f.dir)
		command.Stderr = os.Stderr
		out, err := command.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		_, err = io.ReadFull(out, make([]byte, 1+round)) // it has worked so often
		require.NoError(t, err)
		require.NoError(t, command.Process.Kill())
		_ = command.Wait()

		record, recordErr := f.config.Prepared.Read(uid)
		if recordErr != nil {
			require.ErrorIs(t, recordErr, os.ErrNotExist)
		} else {
			require.NoError(t, record.Validate())
		}
		if _, err := os.Stat(filepath.Join(f.config.CDIDir, "gpuslice-claim-"+uid+".json")); err == nil {
			require.NoError(t, recordErr, "a CDI device without its record")
			cache, err := cdi.NewCache(cdi.WithSpecDirs(f.config.CDIDir), cdi.WithAutoRefresh(false))
			require.NoError(t, err)
			require.Empty(t, cache.GetErrors())
		}
		_, err = f.prepare(claim(result("gpu", gpuA, 1000)))
		require.NoError(t, err)
		require.NoError(t, f.unprepare(uid))
	}
	// What unfinished writes left is removed when the agent starts.
	_, err = prepared.Open(f.dir)
	require.NoError(t, err)
	f.run()
	require.Eventually(t, func() bool { return len(f.files()) == 0 }, time.Minute, 5*time.Millisecond, "%v", f.files())
}

// run runs the driver until the test ends.
func (f *fixture) run() {
	require.NoError(f.t, os.MkdirAll(f.config.KubeletDir, 0o755))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.driver.Run(ctx) }()
	f.t.Cleanup(func() { cancel(); <-done })
}

func (f *fixture) dial(socket string) *grpc.ClientConn {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// The kubelet finds the driver, and the driver reads the ResourceClaim from the API server.
func TestServesTheKubelet(t *testing.T) {
	f := newFixture(t)
	c := claim(result("gpu", gpuA, 1000))
	_, err := f.client.ResourceV1().ResourceClaims("ns").Create(t.Context(), c, metav1.CreateOptions{})
	require.NoError(t, err)
	f.run()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	registrar := registration.NewRegistrationClient(f.dial(filepath.Join(f.config.KubeletDir, "plugins_registry/gpu.gpuslice.io-reg.sock")))
	info, err := registrar.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, "DRAPlugin", info.Type)
	require.Equal(t, "gpu.gpuslice.io", info.Name)
	require.Contains(t, strings.Join(info.SupportedVersions, " "), "v1.DRAPlugin")

	conn := f.dial(info.Endpoint)
	plugin := drapb.NewDRAPluginClient(conn)
	ask := func(uid string) *drapb.NodePrepareResourceResponse {
		answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "c", Uid: uid}}})
		if err != nil {
			return &drapb.NodePrepareResourceResponse{Error: err.Error()}
		}
		return answer.Claims[uid]
	}
	answer := ask(uid)
	require.Empty(t, answer.Error)
	require.Equal(t, []string{"gpuslice.io/claim=" + uid + ".gpu"}, answer.Devices[0].CdiDeviceIds)
	require.Contains(t, ask("another").Error, "replaced")
	_, err = plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "c", Uid: uid}}})
	require.NoError(t, err)
	require.Empty(t, f.files())

	stream, err := drahealth.NewDRAResourceHealthClient(conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	require.NoError(t, err)
	report, err := stream.Recv()
	require.NoError(t, err)
	require.Len(t, report.Devices, 2)
	require.Equal(t, drahealth.HealthStatus_HEALTHY, report.Devices[0].Health)
	f.set(func() {
		f.node.Devices[0].Problem = "XID 79"
	})
	for report.Devices[0].Health == drahealth.HealthStatus_HEALTHY {
		report, err = stream.Recv()
		require.NoError(t, err)
	}
	require.Equal(t, "XID 79", report.Devices[0].Message)
	require.Equal(t, "node-1/h200", report.Devices[0].Device.PoolName)
}

// slices are the node's devices in the API server, with their taints.
func (f *fixture) published() map[string]int {
	list, err := f.client.ResourceV1().ResourceSlices().List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	found := map[string]int{}
	for _, s := range list.Items {
		require.Equal(f.t, "gpu.gpuslice.io", s.Spec.Driver)
		require.Equal(f.t, "node-1", *s.Spec.NodeName)
		for _, d := range s.Spec.Devices {
			found[d.Name] = len(d.Taints)
		}
	}
	return found
}

func TestPublishes(t *testing.T) {
	f := newFixture(t)
	f.set(func() { f.unknown = true })
	f.run()
	has := func(want map[string]int) {
		t.Helper()
		require.Eventually(t, func() bool { return fmt.Sprint(f.published()) == fmt.Sprint(want) }, time.Minute, 5*time.Millisecond, "%v", want)
	}
	a, b := device(gpuA).Name(), device(gpuB).Name()
	f.set(func() { f.unknown = false })
	f.driver.Changed()
	has(map[string]int{a: 0, b: 0})
	f.set(func() { f.node.NotConnected = true })
	f.driver.Changed()
	has(map[string]int{a: 1, b: 1})
	f.set(func() { f.node = devices.Node{Name: "node-1", Devices: []devices.Device{device(gpuB)}} })
	f.driver.Changed()
	has(map[string]int{b: 0})
	// A kubelet that starts removes all of them.
	list, err := f.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, s := range list.Items {
		require.NoError(t, f.client.ResourceV1().ResourceSlices().Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	}
	has(map[string]int{b: 0})
}
