package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type Config struct {
	Resource   Resource
	GPUs       *Inventory
	Connection *Connection
	// Policy selects devices; nil is Packed.
	Policy func() Policy
	// Links scores the connection of two GPUs; optional.
	Links func(a, b string) int
	// Env is added to every container with a device, in addition to NVIDIA_VISIBLE_DEVICES.
	Env map[string]string
	// Allocated is called after each allocation; optional.
	Allocated func()
}

// Plugin serves one resource. It has no state of containers.
type Plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	Config
}

var _ v1beta1.DevicePluginServer = (*Plugin)(nil)

func New(c Config) *Plugin { return &Plugin{Config: c} }

// GetDevicePluginOptions enables GetPreferredAllocation.
func (p *Plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the devices now and after each change.
func (p *Plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	for {
		gpus, gpusChanged := p.GPUs.GPUs()
		connected, connectionChanged := p.Connection.Healthy()
		if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: p.devices(gpus, connected)}); err != nil {
			return fmt.Errorf("send the devices of %s to the kubelet: %w", p.Resource.Name, err)
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-gpusChanged:
		case <-connectionChanged:
		}
	}
}

// devices are unhealthy while the agent is not connected, so that no pod is placed by a scheduler that reads only the
// kubelet's count.
func (p *Plugin) devices(gpus []GPU, connected bool) []*v1beta1.Device {
	devices := []*v1beta1.Device{}
	for _, c := range gpus {
		health := v1beta1.Unhealthy
		if c.Healthy && connected {
			health = v1beta1.Healthy
		}
		var topology *v1beta1.TopologyInfo
		if c.NUMANode >= 0 {
			topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(c.NUMANode)}}}
		}
		for n := range c.Devices {
			devices = append(devices, &v1beta1.Device{ID: device{c.UUID, n}.id(), Health: health, Topology: topology})
		}
	}
	return devices
}

// Allocate returns the devices' ids in an annotation, and no access to GPUs.
func (p *Plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	gpus, _ := p.GPUs.GPUs()
	response := &v1beta1.AllocateResponse{}
	for _, r := range request.GetContainerRequests() {
		devices, err := p.Resource.parseAll(r.GetDevicesIds(), gpus)
		if err == nil && len(devices) == 0 {
			err = fmt.Errorf("a container without a device of %s", p.Resource.Name)
		}
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "allocate: %v", err)
		}
		env := map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}
		maps.Copy(env, p.Env)
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs:        env,
			Annotations: map[string]string{p.Resource.Annotation: p.Resource.list(devices)},
		})
	}
	if p.Allocated != nil {
		p.Allocated()
	}
	return response, nil
}

// GetPreferredAllocation chooses among the free devices.
func (p *Plugin) GetPreferredAllocation(_ context.Context, request *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	gpus, _ := p.GPUs.GPUs()
	response := &v1beta1.PreferredAllocationResponse{}
	for _, r := range request.GetContainerRequests() {
		ids, err := p.preferred(r, gpus)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "preferred allocation: %v", err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

func (p *Plugin) preferred(r *v1beta1.ContainerPreferredAllocationRequest, gpus []GPU) ([]string, error) {
	available := p.Resource.parseKnown(r.GetAvailableDeviceIDs(), gpus)
	must, err := p.Resource.parseAll(r.GetMustIncludeDeviceIDs(), gpus)
	size := int(r.GetAllocationSize())
	if err == nil {
		err = checkSize(available, must, size)
	}
	if err != nil {
		return nil, err
	}
	policy := Packed
	if p.Policy != nil {
		policy = p.Policy()
	}
	switch {
	case policy == InOrder:
		return sortedIDs(inOrder(available, must, size)), nil
	case p.Resource.Parts:
		return sortedIDs(preferParts(available, must, size, policy, p.Links)), nil
	default:
		return sortedIDs(prefer(available, must, size, policy, p.Links)), nil
	}
}

func sortedIDs(devices []device) []string {
	sorted := slices.SortedFunc(slices.Values(devices), device.compare)
	ids := make([]string, len(sorted))
	for i, d := range sorted {
		ids[i] = d.id()
	}
	return ids
}
