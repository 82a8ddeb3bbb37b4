package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant/podresources"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// kubelet has a device plugin for each resource. A resource without GPUs (a MIG profile) is kept,
// empty.
type kubelet struct {
	options    *options
	connection *deviceplugin.Connection
	links      func(a, b string) int
	policy     func() deviceplugin.Policy
	allocated  func() // after each allocation; may be nil
	log        *slog.Logger

	mu      sync.Mutex
	ctx     context.Context
	offered map[deviceplugin.Resource]*deviceplugin.Inventory
	serving sync.WaitGroup
}

func newKubelet(o *options, links func(a, b string) int, policy func() deviceplugin.Policy, connection *deviceplugin.Connection, log *slog.Logger) *kubelet {
	return &kubelet{
		options: o, connection: connection, links: links, policy: policy, log: log,
		offered: map[deviceplugin.Resource]*deviceplugin.Inventory{},
	}
}

func (k *kubelet) set(gpus map[deviceplugin.Resource][]deviceplugin.GPU) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, inventory := range k.offered {
		inventory.Set(gpus[resource])
	}
	for resource, list := range gpus {
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

func (k *kubelet) run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	for resource, inventory := range k.offered {
		k.serve(resource, inventory)
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.ctx = nil
	k.mu.Unlock()
	k.serving.Wait()
}

func (k *kubelet) serve(resource deviceplugin.Resource, inventory *deviceplugin.Inventory) {
	plugin := deviceplugin.New(deviceplugin.Config{
		Resource: resource, GPUs: inventory, Connection: k.connection, Policy: k.policy, Links: k.links, Env: k.options.featureEnv(), Allocated: k.allocated,
	})
	server := deviceplugin.NewServer(k.options.DevicePluginDir, resource.Name, plugin, k.log)
	ctx := k.ctx
	k.serving.Go(func() { server.Run(ctx) })
}

// features of NVIDIA's container toolkit ("Specialized Configurations" in its documentation).
func (o *options) features() []string {
	var features []string
	for _, f := range []struct {
		name    string
		enabled bool
	}{{"gds", o.GDSEnabled}, {"mofed", o.MOFEDEnabled}, {"gdrcopy", o.GDRCopyEnabled}} {
		if f.enabled {
			features = append(features, f.name)
		}
	}
	return features
}

// imexChannels are valid: the options were checked.
func (o *options) imexChannels() (ids []int) {
	for _, text := range o.IMEXChannelIDs {
		id, _ := strconv.Atoi(text)
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// featureEnv are the variables that make NVIDIA's runtime add the features. With CDI, oci.Featured
// adds them instead.
func (o *options) featureEnv() map[string]string {
	env := map[string]string{}
	for _, name := range o.features() {
		env["NVIDIA_"+strings.ToUpper(name)] = "enabled"
	}
	return env
}

func (o *options) devices(gpus *oci.Registry, p *publisher, first *background, log *slog.Logger) (oci.DeviceEdits, error) {
	featured := oci.DriverFeatures{GPUs: gpus}
	if p.mig != nil {
		featured.GPUs = madeDevices{gpus, func() nvidia.Node { return p.now().GPUs.Node }, os.DirFS("/proc"), p.mig.Records}
	}
	for _, name := range o.features() {
		registry, err := oci.NewRegistry(oci.RegistryConfig{Kind: "nvidia.com/" + name, Dirs: o.CDISpecDirs, Log: log})
		if err != nil {
			return nil, err
		}
		featured.Features = append(featured.Features, registry)
		*first = append(*first, registry.Run)
	}
	return featured, nil
}

func (o *options) countedResources() []podresources.Resource {
	names := o.ResourceNames
	if o.DevicePluginDir != "" && o.ResourceProfile != string(profileTencent) && !slices.Contains(names, o.ResourceName) {
		names = append(slices.Clone(names), o.ResourceName)
	}
	var counted []podresources.Resource
	for _, name := range names {
		counted = append(counted, podresources.Resource{Name: name, PerGPU: 1})
	}
	if o.ResourceProfile == string(profileTencent) {
		counted = append(counted, podresources.Resource{Name: api.ResourceVcudaCore, PerGPU: api.VcudaCores})
	}
	return counted
}
