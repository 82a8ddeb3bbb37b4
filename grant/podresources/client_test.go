package podresources_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	kubeletv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/podresources"
)

// kubelet is a PodResources service with fixed answers. Without get it has List
// only, as a kubelet older than Get.
type kubelet struct {
	kubeletv1.UnimplementedPodResourcesListerServer
	get  func() (*kubeletv1.PodResources, error)
	list []*kubeletv1.PodResources
	slow func() // if set, it is called and List gives no answer
}

func (k *kubelet) Get(ctx context.Context, request *kubeletv1.GetPodResourcesRequest) (*kubeletv1.GetPodResourcesResponse, error) {
	if k.get == nil {
		return k.UnimplementedPodResourcesListerServer.Get(ctx, request)
	}
	pod, err := k.get()
	return &kubeletv1.GetPodResourcesResponse{PodResources: pod}, err
}

func (k *kubelet) List(ctx context.Context, _ *kubeletv1.ListPodResourcesRequest) (*kubeletv1.ListPodResourcesResponse, error) {
	if k.slow != nil {
		k.slow()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &kubeletv1.ListPodResourcesResponse{PodResources: k.list}, nil
}

// serve runs the kubelet on a socket until the test ends.
func serve(t testing.TB, k *kubelet) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	kubeletv1.RegisterPodResourcesListerServer(server, k)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
	return socket
}

func container(name string, devices ...*kubeletv1.ContainerDevices) *kubeletv1.ContainerResources {
	return &kubeletv1.ContainerResources{Name: name, Devices: devices}
}

func devices(resource string, ids ...string) *kubeletv1.ContainerDevices {
	return &kubeletv1.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

func pod(namespace, name string, containers ...*kubeletv1.ContainerResources) *kubeletv1.PodResources {
	return &kubeletv1.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

func TestContainerNames(t *testing.T) {
	mine := pod("ns", "mine",
		container("side"),
		container("main", devices("nvidia.com/gpu", "a::0", "a::1"), devices("example.com/nic", "n0"), devices("nvidia.com/gpu", "b::0")))
	want := []grant.ContainerDevices{{Name: "side"}, {Name: "main", Devices: 3}}
	answer := func(p *kubeletv1.PodResources, err error) func() (*kubeletv1.PodResources, error) {
		return func() (*kubeletv1.PodResources, error) { return p, err }
	}
	tests := []struct {
		description string
		kubelet     *kubelet
		want        []grant.ContainerDevices
		says        string
	}{
		{"by Get", &kubelet{get: answer(mine, nil)}, want, ""},
		{"by List where Get is not known", &kubelet{list: []*kubeletv1.PodResources{pod("ns", "other"), mine}}, want, ""},
		{"by List where Get is switched off", &kubelet{get: answer(nil, fmt.Errorf("PodResources API Get method disabled")), list: []*kubeletv1.PodResources{mine}}, want, ""},
		{"another pod by Get", &kubelet{get: answer(pod("ns", "other"), nil)}, nil, "returned pod ns/other"},
		{"no pod by Get", &kubelet{get: answer(nil, nil)}, nil, "returned pod"},
		{"same name in another namespace", &kubelet{list: []*kubeletv1.PodResources{pod("other", "mine", container("main"))}}, nil, "lists the pod 0 times"},
		{"two pods of the name", &kubelet{list: []*kubeletv1.PodResources{mine, mine}}, nil, "lists the pod 2 times"},
		{"a container twice", &kubelet{list: []*kubeletv1.PodResources{pod("ns", "mine", container("main"), container("main"))}}, nil, `container "main" of pod ns/mine twice`},
	}
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			client := podresources.New(serve(t, test.kubelet))
			got, err := client.ContainerNames(context.Background(), grant.Pod{Namespace: "ns", Name: "mine"})
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

func TestResourceNamesAreSettings(t *testing.T) {
	k := &kubelet{list: []*kubeletv1.PodResources{pod("ns", "mine", container("main", devices("nvidia.com/gpu", "x"), devices("example.com/a", "1"), devices("example.com/b", "2", "3")))}}
	got, err := podresources.New(serve(t, k), podresources.Resource{Name: "example.com/a", PerGPU: 1}, podresources.Resource{Name: "example.com/b", PerGPU: 2}).ContainerNames(context.Background(), grant.Pod{Namespace: "ns", Name: "mine"})
	require.NoError(t, err)
	assert.Equal(t, []grant.ContainerDevices{{Name: "main", Devices: 2}}, got)
}

// soon is the error of a question that must be answered long before the minute that it could wait for.
func soon(ctx context.Context, t *testing.T, client *podresources.Client) error {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		_, err := client.ContainerNames(ctx, grant.Pod{Namespace: "ns", Name: "mine"})
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it waits on")
		return nil
	}
}

func TestSlowKubeletEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	client := podresources.New(serve(t, &kubelet{slow: func() { cancel(context.DeadlineExceeded) }}))
	require.ErrorIs(t, soon(ctx, t, client), context.DeadlineExceeded)
}

func TestAbsentSocketIsReportedAtOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.ErrorContains(t, soon(ctx, t, podresources.New(socket)), socket)
	assert.NoError(t, ctx.Err(), "it must not wait for the context")
}

// TestPositionalGrantByTheKubelet is the whole way: two containers, order from
// the kubelet.
func TestPositionalGrantByTheKubelet(t *testing.T) {
	const gpuA, gpuB = "GPU-0a000000-1111-2222-3333-444455556666", "GPU-0b000000-1111-2222-3333-444455556666"
	client := podresources.New(serve(t, &kubelet{list: []*kubeletv1.PodResources{
		pod("ns", "mine", container("first", devices("nvidia.com/gpu", "a")), container("second", devices("nvidia.com/gpu", "b")))}}))
	p := grant.Pod{UID: "u", Namespace: "ns", Name: "mine", Annotations: map[string]string{
		api.AnnotationHAMiToAllocate: gpuA + ",NVIDIA,1000,10:;" + gpuB + ",NVIDIA,2000,20:;"}}
	got, err := grant.FromPod(context.Background(), p, "second", "node-1", client, nil)
	require.NoError(t, err)
	assert.Equal(t, []grant.Share{{UUID: gpuB, MemoryMiB: 2000, CorePercent: 20}}, got.Shares)
}

func BenchmarkContainerNames(b *testing.B) {
	var all []*kubeletv1.PodResources
	for i := range 100 {
		all = append(all, pod("ns", fmt.Sprint("pod-", i), container("main", devices("nvidia.com/gpu", "a"))))
	}
	client := podresources.New(serve(b, &kubelet{list: all}))
	for b.Loop() {
		if _, err := client.ContainerNames(context.Background(), grant.Pod{Namespace: "ns", Name: "pod-50"}); err != nil {
			b.Fatal(err)
		}
	}
}
