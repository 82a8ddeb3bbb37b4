//go:build root

package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/test/harness"
)

// claims plays the API server, with ResourceClaims, and the kubelet, for a DRA driver.
type claims struct {
	t          testing.TB
	n          *harness.Node
	kubelet    string
	kubeconfig string

	mu     sync.Mutex
	byName map[string]*resourceapi.ResourceClaim
}

func newClaims(t testing.TB) *claims {
	dir, err := os.MkdirTemp("", "gsk") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &claims{t: t, kubelet: dir, byName: map[string]*resourceapi.ResourceClaim{}}
	server := httptest.NewServer(c)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(c.kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, server.URL), 0o600))
	return c
}

// ServeHTTP answers with the node and the ResourceClaims. It has no ResourceSlices, and refuses to make any.
func (c *claims) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var object any
	name, claim := strings.CutPrefix(r.URL.Path, "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/")
	switch {
	case r.URL.Path == "/api/v1/nodes/"+harness.NodeName:
		node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: harness.NodeName, UID: "node"}}
		object = node
	case claim && c.byName[name] != nil:
		object = c.byName[name]
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

// args are the agent's arguments for DRA.
func (c *claims) args(n *harness.Node) []string {
	return []string{
		"--resource-api=dra", "--kubelet-dir=" + c.kubelet, "--kubeconfig=" + c.kubeconfig, "--kubernetes-api=on",
		// containerd reads only its own directory.
		"--cdi-spec-dirs=" + filepath.Join(n.Dir, "cdi") + "," + filepath.Join(n.Containerd.Dir, "no-cdi"),
	}
}

// newDRANode is a node of which the agent is a DRA driver.
func newDRANode(t testing.TB) (*harness.Node, *claims) {
	c := newClaims(t)
	n := newNode(t, harness.NodeOptions{GPUs: []string{"H200", "H200"}, NoAgent: true})
	n.SetAgentArgs(c.args(n)...)
	require.NoError(t, n.StartAgent(context.Background()))
	c.n = n
	return n, c
}

// allocate makes a ResourceClaim as kube-scheduler allocates it.
func (c *claims) allocate(name, gpu string, memory, cores string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName[name] = &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpu.gpuslice.io", Pool: harness.NodeName + "/h200", Device: strings.Replace(gpu, "GPU-", "gpu-", 1), ShareID: new(types.UID("share")),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory), "cores": resource.MustParse(cores), "slots": resource.MustParse("1")},
		}}}}},
	}
}

func (c *claims) plugin(ctx context.Context, do func(drapb.DRAPluginClient) error) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.kubelet, "plugins/gpu.gpuslice.io/dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(drapb.NewDRAPluginClient(conn))
}

// prepare asks the driver as the kubelet does, and returns the CDI devices.
func (c *claims) prepare(ctx context.Context, name string) (devices []string, err error) {
	err = c.plugin(ctx, func(plugin drapb.DRAPluginClient) error {
		answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default", Name: name, Uid: "uid-" + name}}})
		if err != nil {
			return err
		}
		if text := answer.Claims["uid-"+name].Error; text != "" {
			return fmt.Errorf("%s", text)
		}
		for _, d := range answer.Claims["uid-"+name].Devices {
			devices = append(devices, d.CdiDeviceIds...)
		}
		return nil
	})
	return devices, err
}

// prepared waits for the driver.
func (c *claims) prepared(name string) (devices []string) {
	require.NoError(c.t, harness.Until(context.Background(), time.Minute, func(ctx context.Context) (err error) {
		devices, err = c.prepare(ctx, name)
		return err
	}))
	return devices
}

func (c *claims) unprepare(name string) {
	ctx := context.Background()
	require.NoError(c.t, c.plugin(ctx, func(plugin drapb.DRAPluginClient) error {
		answer, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default", Name: name, Uid: "uid-" + name}}})
		if err == nil && answer.Claims["uid-"+name].Error != "" {
			err = fmt.Errorf("%s", answer.Claims["uid-"+name].Error)
		}
		return err
	}))
}

func (c *claims) record(name string) string {
	return filepath.Join(c.n.StateDir(), "prepared", "uid-"+name+".json")
}

// requireGranted compares what the ledger has of the first GPU.
func requireGranted(t testing.TB, n *harness.Node, mibs int64) {
	t.Helper()
	s, err := n.Status(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, mibs, s.GPUs[0].GrantedMemoryMiB)
}

// requireNoGPU runs a pod, and requires that it is refused or sees no GPU.
func requireNoGPU(t testing.TB, n *harness.Node, name string, k harness.Container) {
	t.Helper()
	ctx := context.Background()
	s := run(t, n, harness.Pod{Name: name})
	k.Name, k.Image = "main", harness.GreedyImage // its image requests all GPUs
	id, err := s.Start(ctx, k)
	if err == nil {
		_, _, code, err := n.Exec(ctx, id, workload("meminfo"))
		require.NoError(t, err)
		require.Equal(t, 4, code, "no driver")
	}
	require.NoError(t, s.Remove(ctx))
}

func TestResourceClaims(t *testing.T) {
	ctx := context.Background()
	n, c := newDRANode(t)
	uuid := gpu(t, n, 0)
	c.allocate("a", uuid, "30Gi", "30")
	c.allocate("b", uuid, "20Gi", "60")
	c.allocate("large", uuid, "143000Mi", "0")
	a, b := c.prepared("a"), c.prepared("b")
	require.Equal(t, []string{"gpuslice.io/claim=uid-a.gpu"}, a)
	again, err := c.prepare(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, a, again)

	total := func(id string, mibs int64) {
		t.Helper()
		requireTotal(t, n, id, mibs)
	}
	podA := run(t, n, harness.Pod{Name: "a"})
	idA := start(t, podA, harness.Container{Name: "main", CDIDevices: append(a, a...)}) // a kubelet that restarted names it twice
	total(idA, 30<<10)
	podB := run(t, n, harness.Pod{Name: "b"})
	total(start(t, podB, harness.Container{Name: "main", CDIDevices: b}), 20<<10)
	requireGranted(t, n, 50<<10)

	// A record is not a grant.
	hostPath := func(source, destination string) []*cri.Mount {
		return []*cri.Mount{{HostPath: source, ContainerPath: destination, Readonly: true}}
	}
	requireNoGPU(t, n, "forged", harness.Container{Mounts: hostPath(c.record("a"), "/.gpuslice-claims/uid-a.gpu")})
	requireNoGPU(t, n, "elsewhere", harness.Container{Mounts: hostPath(c.record("b"), "/data")})
	requireNoGPU(t, n, "directory", harness.Container{Mounts: hostPath(filepath.Dir(c.record("b")), "/.gpuslice-claims")})
	requireNoGPU(t, n, "all", harness.Container{Mounts: hostPath(n.StateDir(), "/data")})
	requireNoGPU(t, n, "plain", harness.Container{})
	// A container with a part of another one's requests has another limit.
	second := run(t, n, harness.Pod{Name: "second"})
	_, err = second.Start(ctx, harness.Container{Name: "main", CDIDevices: append(b, a...)})
	require.ErrorContains(t, err, "in use by a container with other requests")
	require.NoError(t, second.Remove(ctx))
	// The API server regards the GPU as free after a forced deletion, and the ledger does not.
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = c.prepare(short, "large")
	require.Error(t, err)
	require.NoFileExists(t, c.record("large"))
	// The next container of the pod.
	require.NoError(t, n.RemoveContainer(ctx, idA))
	total(start(t, podA, harness.Container{Name: "main", Attempt: 1, CDIDevices: a}), 30<<10)

	require.NoError(t, podA.Remove(ctx))
	require.NoError(t, podB.Remove(ctx))
	c.unprepare("a")
	requireNoGPU(t, n, "unprepared", harness.Container{CDIDevices: a})
	requireNoGPU(t, n, "unprepared-forged", harness.Container{Mounts: hostPath(n.StateDir(), "/data")})
	podL := run(t, n, harness.Pod{Name: "large"})
	total(start(t, podL, harness.Container{Name: "main", CDIDevices: c.prepared("large")}), 143000)
	require.NoError(t, podL.Remove(ctx))
	for _, name := range []string{"b", "large"} {
		c.unprepare(name)
	}
	requireNothingLeft(t, n)
}

// Two containers of a pod, and one of another, have the same ResourceClaim: one limit in common, in three PID namespaces.
func TestSharedResourceClaim(t *testing.T) {
	ctx := context.Background()
	n, c := newDRANode(t)
	c.allocate("a", gpu(t, n, 0), "3000Mi", "30")
	a := c.prepared("a")
	hold := harness.Container{Name: "holds", Command: []string{workload("hold"), "--mib=1000"}, CDIDevices: a}
	idle := harness.Container{Name: "idle", CDIDevices: a}
	first, second := run(t, n, harness.Pod{Name: "first"}), run(t, n, harness.Pod{Name: "second"})
	holds, beside := start(t, first, hold), start(t, first, idle)
	waitReady(t, first, hold)
	elsewhere := start(t, second, idle)
	one := func(containers int, used uint64) {
		t.Helper()
		s, err := n.Status(ctx)
		require.NoError(t, err)
		require.Len(t, s.Containers, 1)
		require.Len(t, s.Containers[0].Members, containers)
		require.EqualValues(t, 3000, s.GPUs[0].GrantedMemoryMiB)
		require.EqualValues(t, 30, s.GPUs[0].GrantedCores)
		require.Equal(t, used*mib, s.Containers[0].Shares[0].UsedBytes)
	}
	left := func(id string, mibs int64) {
		t.Helper()
		v := exec(t, n, id, workload("alloc"), "--chunk-mib=100")
		require.Equal(t, mibs*mib, number(t, v["allocated_bytes"]))
	}
	one(3, 1000+contextMiB)
	left(beside, (3000-1000-2*contextMiB)/100*100)
	left(elsewhere, (3000-1000-2*contextMiB)/100*100)

	// The agent is killed, and a container of the three ends without it.
	n.Agent.Kill()
	require.NoError(t, n.RemoveContainer(ctx, beside))
	require.NoError(t, n.StartAgent(ctx))
	one(2, 1000+contextMiB)
	left(elsewhere, (3000-1000-2*contextMiB)/100*100)
	beside = start(t, first, harness.Container{Name: "idle", Attempt: 1, CDIDevices: a})

	// What a killed container had is free for the others, in which its process can't be looked up.
	require.NoError(t, n.RemoveContainer(ctx, holds))
	left(elsewhere, (3000-contextMiB)/100*100)
	left(beside, (3000-contextMiB)/100*100)
	one(2, 0)
	require.NoError(t, first.Remove(ctx))
	c.unprepare("a")
	left(elsewhere, (3000-contextMiB)/100*100)
	one(1, 0)
	requireNoGPU(t, n, "unprepared", harness.Container{CDIDevices: a})
	require.NoError(t, second.Remove(ctx))
	requireNothingLeft(t, n)
}

// Whatever of the agent is missing, no container has a GPU without its limits.
func TestResourceClaimsFailClosed(t *testing.T) {
	ctx := context.Background()
	n, c := newDRANode(t)
	uuid := gpu(t, n, 0)
	c.allocate("a", uuid, "30Gi", "30")
	c.allocate("kept", uuid, "10Gi", "10")
	a, kept := c.prepared("a"), c.prepared("kept")
	pod := run(t, n, harness.Pod{Name: "kept"})
	id := start(t, pod, harness.Container{Name: "main", CDIDevices: kept})

	for name, fault := range map[string]struct{ begin, end func() }{
		"agent-killed":   {func() { n.Agent.Kill() }, func() { require.NoError(t, n.StartAgent(ctx)) }},
		"record-removed": {func() { require.NoError(t, os.Remove(c.record("a"))) }, func() { require.Equal(t, a, c.prepared("a")) }},
		"record-damaged": {func() { require.NoError(t, os.WriteFile(c.record("a"), []byte("{}"), 0o600)) }, func() { require.Equal(t, a, c.prepared("a")) }},
		"device-plugin": {func() {
			n.Agent.Kill()
			n.SetAgentArgs()
			require.NoError(t, n.StartAgent(ctx))
		}, func() {
			n.Agent.Kill()
			n.SetAgentArgs(c.args(n)...)
			require.NoError(t, n.StartAgent(ctx))
		}},
	} {
		fault.begin()
		requireNoGPU(t, n, name, harness.Container{CDIDevices: a})
		fault.end()
		require.Equal(t, a, c.prepared("a"))
		ok := run(t, n, harness.Pod{Name: "after-" + name})
		requireTotal(t, n, start(t, ok, harness.Container{Name: "main", CDIDevices: a}), 30<<10)
		require.NoError(t, ok.Remove(ctx))
	}
	// The kubelet is refused while the agent is away.
	n.Agent.Kill()
	_, err := c.prepare(ctx, "a")
	require.Error(t, err)
	// A container keeps its share, also if the ledger is lost meanwhile.
	require.NoError(t, os.RemoveAll(filepath.Join(n.StateDir(), "containers", ledger.CommonID([]string{"uid-kept.gpu"}), "grant.json")))
	require.NoError(t, n.StartAgent(ctx))
	requireGranted(t, n, 10<<10)
	requireTotal(t, n, id, 10<<10)
	require.NoError(t, pod.Remove(ctx))
	c.unprepare("a")
	c.unprepare("kept")
	requireNothingLeft(t, n)
}
