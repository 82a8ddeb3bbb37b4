package dra

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
)

// syncDelay is the time after which ResourceSlices that others removed are made again: a kubelet that starts removes
// those of its node. kubeletplugin's own controller waits 30 s.
const syncDelay = time.Second

// publishInterval is the polling interval for changes without a call of Changed.
const publishInterval = 5 * time.Second

// publish keeps the node's ResourceSlices equal to what it offers, from the first reading of the GPUs until ctx ends.
// Later they stay: the kubelet removes them if no driver registers, and the API server with the Node.
func (d *Driver) publish(ctx context.Context) {
	var controller *resourceslice.Controller
	defer func() {
		if controller != nil {
			controller.Stop()
		}
	}()
	var last *resourceslice.DriverResources
	var problem logonce.Problem
	periodic.Vary(ctx, d.changed, func() time.Duration {
		node, known := d.Node()
		if !known {
			return restartPause
		}
		next := &resourceslice.DriverResources{Pools: node.Pools()}
		if controller != nil {
			if !equality.Semantic.DeepEqual(last, next) {
				controller.Update(next)
			}
			last = next
			return publishInterval
		}
		var err error
		controller, err = resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: api.DRADriver, KubeClient: d.Client, Resources: next, SyncDelay: new(syncDelay),
			Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: d.NodeName},
			ErrorHandler: func(_ context.Context, err error, message string) {
				if ctx.Err() == nil {
					d.Log.Warn("ResourceSlices: "+message, "error", err)
				}
			},
		})
		problem.Warn(d.Log, "ResourceSlices are not published; retrying", err)
		if err != nil {
			controller = nil
			return restartPause
		}
		last = next
		return publishInterval
	})
}

// Intervals of the health reports. The kubelet regards a device as unknown after 30 s.
const (
	healthInterval = time.Second
	healthRepeated = 10 * time.Second
)

// NodeWatchResources sends the health of all devices, after a change and repeatedly.
func (d *Driver) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[drahealth.NodeWatchResourcesResponse]) error {
	var last []*drahealth.DeviceHealth
	var sent time.Time
	for {
		if now := d.healths(); !sameHealth(last, now) || time.Since(sent) >= healthRepeated {
			for _, h := range now {
				h.LastUpdatedTime = time.Now().Unix()
			}
			if err := stream.Send(&drahealth.NodeWatchResourcesResponse{Devices: now}); err != nil {
				return err
			}
			last, sent = now, time.Now()
		}
		if !periodic.Sleep(stream.Context(), healthInterval) {
			return nil
		}
	}
}

func (d *Driver) healths() (all []*drahealth.DeviceHealth) {
	node, _ := d.Node()
	add := func(device devices.Device, name string) {
		h := &drahealth.DeviceHealth{
			Device: &drahealth.DeviceIdentifier{PoolName: node.Pool(device), DeviceName: name},
			Health: drahealth.HealthStatus_HEALTHY, Message: device.Problem,
		}
		if device.Problem != "" {
			h.Health = drahealth.HealthStatus_UNHEALTHY
		}
		all = append(all, h)
	}
	for _, device := range node.Devices {
		if !device.OnRequest {
			add(device, device.Name())
		}
	}
	for _, p := range node.Places {
		add(p.Device, p.Name())
	}
	return all
}

func sameHealth(a, b []*drahealth.DeviceHealth) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Device.PoolName != b[i].Device.PoolName || a[i].Device.DeviceName != b[i].Device.DeviceName || a[i].Health != b[i].Health || a[i].Message != b[i].Message {
			return false
		}
	}
	return true
}
