// Package podresources reads the order of a pod's containers from the kubelet, for grant.FromPod.
package podresources

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	kubeletv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// maxAnswerBytes bounds a List of all pods of a node.
const maxAnswerBytes = 16 << 20

// Client reads from the kubelet's PodResources service. It connects for each request: they are rare.
type Client struct {
	socket    string
	resources []Resource
}

// Resource is a resource with GPUs as devices.
type Resource struct {
	// Name is the extended resource's, "nvidia.com/gpu".
	Name string
	// PerGPU is the number of devices for one GPU: 1 for HAMi's and NVIDIA's resource, 100 for gpu-manager's cores.
	PerGPU int
}

var _ grant.ContainerNames = (*Client)(nil)

// New returns a client of the socket for the resources, or for api.ResourceGPU.
func New(socket string, resources ...Resource) *Client {
	if len(resources) == 0 {
		resources = []Resource{{api.ResourceGPU, 1}}
	}
	return &Client{socket: socket, resources: resources}
}

// ContainerNames implements grant.ContainerNames (kubernetes pkg/kubelet/apis/podresources/server_v1.go). The
// service names pods by namespace and name: two pods with the same name (one is being deleted) are an error.
func (c *Client) ContainerNames(ctx context.Context, pod grant.Pod) ([]grant.ContainerDevices, error) {
	conn, err := grpc.NewClient("unix:"+c.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet at %s: %w", c.socket, err)
	}
	defer conn.Close()
	found, err := c.find(ctx, kubeletv1.NewPodResourcesListerClient(conn), pod)
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s from the kubelet at %s: %w", pod.Namespace, pod.Name, c.socket, err)
	}
	return c.count(found)
}

// find returns the pod's resources by Get (enabled in Kubernetes 1.34; before, an unknown method or an error
// without a code), else by List.
func (c *Client) find(ctx context.Context, kubelet kubeletv1.PodResourcesListerClient, pod grant.Pod) (*kubeletv1.PodResources, error) {
	one, err := kubelet.Get(ctx, &kubeletv1.GetPodResourcesRequest{PodName: pod.Name, PodNamespace: pod.Namespace})
	switch status.Code(err) {
	case codes.OK:
		if found := one.GetPodResources(); isPod(found, pod) {
			return found, nil
		}
		return nil, fmt.Errorf("it returned pod %s/%s", one.GetPodResources().GetNamespace(), one.GetPodResources().GetName())
	case codes.Unimplemented, codes.Unknown:
	default:
		return nil, fmt.Errorf("get: %w", withCause(ctx, err))
	}
	all, err := kubelet.List(ctx, &kubeletv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list: %w", withCause(ctx, err))
	}
	matching := slices.DeleteFunc(all.GetPodResources(), func(p *kubeletv1.PodResources) bool { return !isPod(p, pod) })
	if len(matching) != 1 {
		return nil, fmt.Errorf("it lists the pod %d times", len(matching))
	}
	return matching[0], nil
}

// withCause adds the context's error, which gRPC's status does not wrap.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil:
	case status.Code(err) == codes.DeadlineExceeded:
		cause = context.DeadlineExceeded
	case status.Code(err) == codes.Canceled:
		cause = context.Canceled
	default:
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

func isPod(resources *kubeletv1.PodResources, pod grant.Pod) bool {
	return resources.GetName() == pod.Name && resources.GetNamespace() == pod.Namespace
}

func (c *Client) count(pod *kubeletv1.PodResources) ([]grant.ContainerDevices, error) {
	var listed []grant.ContainerDevices
	for _, container := range pod.GetContainers() {
		name := container.GetName()
		if slices.ContainsFunc(listed, func(l grant.ContainerDevices) bool { return l.Name == name }) {
			return nil, fmt.Errorf("the kubelet lists container %q of pod %s/%s twice", name, pod.GetNamespace(), pod.GetName())
		}
		devices := 0
		for _, r := range c.resources {
			ids := 0 // the kubelet lists a resource once for each NUMA node
			for _, d := range container.GetDevices() {
				if d.GetResourceName() == r.Name {
					ids += len(d.GetDeviceIds())
				}
			}
			devices += (ids + r.PerGPU - 1) / r.PerGPU
		}
		listed = append(listed, grant.ContainerDevices{Name: name, Devices: devices})
	}
	return listed, nil
}
