package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/gpu"
)

// offer offers the cards to the kubelet until ctx ends, as healthy while ready says
// that the node is guarded.
func (o *options) offer(ctx context.Context, cards *deviceplugin.Inventory, connections deviceplugin.Links, ready func() error, log *slog.Logger) {
	if o.DevicePluginDir == "" {
		return
	}
	guard := deviceplugin.NewGuard(ready, log)
	plugin := deviceplugin.New(deviceplugin.Config{
		Resource: deviceplugin.Replicas(o.ResourceName, o.SplitCount),
		Cards:    cards,
		Guard:    guard,
		Policy:   deviceplugin.Policy(o.AllocationPolicy),
		Links:    connections,
		Env:      o.features(),
	})
	server := deviceplugin.NewServer(o.DevicePluginDir, o.ResourceName, plugin, log)
	var running sync.WaitGroup
	running.Go(func() { guard.Run(ctx) })
	running.Go(func() { server.Run(ctx) })
	running.Wait()
}

// links are how the cards are connected, by the newest look at them.
type links struct{ inventory *gpu.Cache }

// Link implements deviceplugin.Links.
func (l links) Link(a, b string) int { return l.inventory.Snapshot().Topology.Link(a, b) }

// features are the variables by which NVIDIA's container toolkit adds more than the
// card ("Environment variables" in its documentation, "Specialized Configurations").
func (o *options) features() map[string]string {
	env := map[string]string{}
	for name, enabled := range map[string]bool{
		"NVIDIA_GDS":     o.GDSEnabled,
		"NVIDIA_MOFED":   o.MOFEDEnabled,
		"NVIDIA_GDRCOPY": o.GDRCopyEnabled,
	} {
		if enabled {
			env[name] = "enabled"
		}
	}
	return env
}

// countedResources are the resources whose devices count as a container's cards.
func (o *options) countedResources() []string {
	if o.DevicePluginDir == "" || slices.Contains(o.ResourceNames, o.ResourceName) {
		return o.ResourceNames
	}
	return append(slices.Clone(o.ResourceNames), o.ResourceName)
}
