package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant/podresources"
)

// kubelet is the kubelet's side: a device plugin for each resource. A resource that has
// no cards any more (a MIG profile) is kept, with none.
type kubelet struct {
	options *options
	guard   deviceplugin.Condition
	links   deviceplugin.Links
	policy  func() deviceplugin.Policy
	log     *slog.Logger

	mu      sync.Mutex
	ctx     context.Context // run's; nil: not running yet
	offered map[deviceplugin.Resource]*deviceplugin.Inventory
	serving sync.WaitGroup
}

func newKubelet(o *options, links deviceplugin.Links, policy func() deviceplugin.Policy, guard deviceplugin.Condition, log *slog.Logger) *kubelet {
	return &kubelet{
		options: o, guard: guard, links: links, policy: policy, log: log,
		offered: map[deviceplugin.Resource]*deviceplugin.Inventory{},
	}
}

// set tells the kubelet of the cards of each resource.
func (k *kubelet) set(cards map[deviceplugin.Resource][]deviceplugin.Card) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, inventory := range k.offered {
		inventory.Set(cards[resource])
	}
	for resource, list := range cards {
		if k.offered[resource] != nil {
			continue
		}
		inventory := deviceplugin.NewInventory()
		inventory.Set(list)
		k.offered[resource] = inventory
		if k.ctx != nil {
			k.serve(resource, inventory)
		}
	}
}

// run offers the cards, as healthy while the node is guarded, until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	for resource, inventory := range k.offered {
		k.serve(resource, inventory)
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.ctx = nil // nothing is served any more
	k.mu.Unlock()
	k.serving.Wait()
}

// serve serves one resource. The lock is held.
func (k *kubelet) serve(resource deviceplugin.Resource, inventory *deviceplugin.Inventory) {
	plugin := deviceplugin.New(deviceplugin.Config{
		Resource: resource, Cards: inventory, Guard: k.guard, Policy: k.policy, Links: k.links, Env: k.options.features(),
	})
	server := deviceplugin.NewServer(k.options.DevicePluginDir, resource.Name, plugin, k.log)
	ctx := k.ctx
	k.serving.Go(func() { server.Run(ctx) })
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
func (o *options) countedResources() []podresources.Resource {
	names := o.ResourceNames
	if o.DevicePluginDir != "" && o.ResourceProfile != string(profileTencent) && !slices.Contains(names, o.ResourceName) {
		names = append(slices.Clone(names), o.ResourceName)
	}
	var counted []podresources.Resource
	for _, name := range names {
		counted = append(counted, podresources.Resource{Name: name, PerCard: 1})
	}
	if o.ResourceProfile == string(profileTencent) {
		counted = append(counted, podresources.Resource{Name: deviceplugin.VcudaCoreResource, PerCard: deviceplugin.VcudaCores})
	}
	return counted
}
