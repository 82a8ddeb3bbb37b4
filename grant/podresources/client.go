// Package podresources asks the kubelet for the order of a pod's containers, so
// that grant.FromPod can read a positional annotation. It imports grant, and it
// is called by the agent only: a directory of its own, so that nothing else
// carries gRPC.
package podresources

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuslice/gpuslice/grant"
)

const (
	// DefaultSocket is the kubelet's socket.
	DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	// DefaultResource is the resource whose devices a slot counts.
	DefaultResource = "nvidia.com/gpu"
	// maxAnswerBytes bounds a List of all pods of a node.
	maxAnswerBytes = 16 << 20
)

// Client asks the kubelet's PodResources service. It dials for each question,
// since they are rare (a positional grant of several slots), so that a restart
// of the kubelet is nothing to it.
type Client struct {
	socket    string
	resources []Resource
}

// Resource is one whose devices count as a container's GPUs.
type Resource struct {
	// Name is the extended resource's, "nvidia.com/gpu".
	Name string
	// PerGPU is how many devices stand for one GPU, or for a part of one: 1 of HAMi's
	// and NVIDIA's resource, 100 of gpu-manager's cores.
	PerGPU int
}

var _ grant.ContainerNames = (*Client)(nil)

// New returns a client of the socket, which counts the devices of the given
// resources: DefaultResource if there are none.
func New(socket string, resources ...Resource) *Client {
	if len(resources) == 0 {
		resources = []Resource{{DefaultResource, 1}}
	}
	return &Client{socket: socket, resources: resources}
}

// ContainerNames implements grant.ContainerNames. It lists what the kubelet
// does: restartable init containers, then all app containers, each in the order
// of the spec (kubernetes pkg/kubelet/apis/podresources/server_v1.go).
//
// The service names pods by namespace and name only. If a pod of the same name
// is there twice (one on its way out), the answer is an error. It waits no
// longer than the context, and does not wait at all for a socket that is not
// there.
func (c *Client) ContainerNames(ctx context.Context, pod grant.Pod) ([]grant.ContainerDevices, error) {
	conn, err := grpc.NewClient("unix:"+c.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet at %s: %w", c.socket, err)
	}
	defer conn.Close()
	found, err := c.find(ctx, api.NewPodResourcesListerClient(conn), pod)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet at %s for pod %s/%s: %w", c.socket, pod.Namespace, pod.Name, err)
	}
	return c.count(found)
}

// find gets the pod's resources: by Get where the kubelet has it (beta and on in
// 1.34, before that an unknown method or an error without a code), else by List.
func (c *Client) find(ctx context.Context, kubelet api.PodResourcesListerClient, pod grant.Pod) (*api.PodResources, error) {
	one, err := kubelet.Get(ctx, &api.GetPodResourcesRequest{PodName: pod.Name, PodNamespace: pod.Namespace})
	switch status.Code(err) {
	case codes.OK:
		if found := one.GetPodResources(); isPod(found, pod) {
			return found, nil
		}
		return nil, fmt.Errorf("it answered for pod %s/%s", one.GetPodResources().GetNamespace(), one.GetPodResources().GetName())
	case codes.Unimplemented, codes.Unknown:
	default:
		return nil, fmt.Errorf("get: %w", withCause(ctx, err))
	}
	all, err := kubelet.List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list: %w", withCause(ctx, err))
	}
	matching := slices.DeleteFunc(all.GetPodResources(), func(p *api.PodResources) bool { return !isPod(p, pod) })
	if len(matching) != 1 {
		return nil, fmt.Errorf("it lists the pod %d times", len(matching))
	}
	return matching[0], nil
}

// withCause adds the context's error where the call ended by it: gRPC's status
// does not carry it, and may come before the context itself says so.
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

// isPod says whether the resources are the pod's.
func isPod(resources *api.PodResources, pod grant.Pod) bool {
	return resources.GetName() == pod.Name && resources.GetNamespace() == pod.Namespace
}

// count turns the kubelet's answer into container names and device counts.
func (c *Client) count(pod *api.PodResources) ([]grant.ContainerDevices, error) {
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
