package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// How the node offers its GPUs to Kubernetes.
const (
	resourceDevicePlugin = "device-plugin"
	resourceDRA          = "dra"
)

func (o *options) dra() bool { return o.ResourceAPI == resourceDRA }

func (o *options) validateDRA(c *checks) {
	c.want("resource-api", o.ResourceAPI == resourceDevicePlugin || o.dra(), "device-plugin or dra", o.ResourceAPI)
	c.absolute("kubelet-dir", o.KubeletDir)
	c.want("mig-on-request", !o.MIGOnRequest || o.dra() && o.MIGStrategy == string(nvidia.MIGMixed), "false without --resource-api=dra and --mig-strategy=mixed", "true")
	if !o.dra() {
		return
	}
	c.want("resource-api", o.withNRI(), "device-plugin without --nri-socket", o.ResourceAPI)
	c.want("resource-api", o.KubernetesAPI != apiOff, "device-plugin with --kubernetes-api=off: DRA needs the API server", o.ResourceAPI)
	c.want("resource-api", len(o.CDISpecDirs) > 0, "device-plugin without --cdi-spec-dirs: the kubelet passes ResourceClaims to the runtime by CDI", o.ResourceAPI)
	c.want("resource-api", len(o.NodeCapacity) == 0, "device-plugin with --node-capacity: the ResourceSlices have the capacity", o.ResourceAPI)
	socket := o.registrationSocket()
	c.want("kubelet-dir", len(socket) <= maxSocketPath, "a shorter directory for the socket's path", socket)
}

func (o *options) registrationSocket() string {
	return filepath.Join(o.KubeletDir, "plugins_registry", api.DRADriver+"-reg.sock")
}

// claimSpecDir is where the runtime finds the CDI specs of prepared ResourceClaims: the directory that overrides others.
func (o *options) claimSpecDir() string { return o.CDISpecDirs[len(o.CDISpecDirs)-1] }

// serveDRA adds the DRA driver to the tasks, in place of the device plugin.
func (o *options) serveDRA(config *rest.Config, plugin *nriplugin.Plugin, p *publisher, then *background, log *slog.Logger) error {
	if config == nil {
		return errors.New("--resource-api=dra: needs the API server: set --kubeconfig, or run the agent in a pod with a service account")
	}
	client, err := draClient(config)
	if err != nil {
		return fmt.Errorf("--resource-api=dra: %w", err)
	}
	offered := &draOffer{pcieRoot: pcieRoot, migOnRequest: o.MIGOnRequest, memoryEnforcement: p.native.ofResourceClaims()}
	driver := dra.New(dra.Config{
		NodeName: o.NodeName, Client: client, KubeletDir: o.KubeletDir, CDIDir: o.claimSpecDir(), Prepared: plugin.Prepared,
		MemoryEnforcement: offered.memoryEnforcement,
		Node:              offered.now, Ready: plugin.Ready, InUse: plugin.Ledger.InUse, MIG: p.mig, Log: log,
		Room: func(ctx context.Context, shares []grant.Share, resourceClaims []string) error {
			return plugin.Ledger.Room(ctx, shares, resourceClaims, p.capacities())
		},
	})
	p.devices = func(now *offer) {
		offered.set(o.NodeName, now, p.onRequest(now.GPUs.Taken)...)
		driver.Changed()
	}
	*then = append(*then, driver.Run)
	return nil
}

// draClient can prepare the ResourceClaims of all pods of a node at once: each needs two requests, and client-go's default of
// 5 a second would delay the last pods by a minute.
func draClient(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 100, 500
	return kubernetes.NewForConfig(config)
}

// draOffer is the offer as devices of ResourceSlices.
type draOffer struct {
	pcieRoot     func(busID string) string
	migOnRequest bool
	// memoryEnforcement does not change: auto is the limiter here.
	memoryEnforcement string
	current           atomic.Pointer[devices.Node]
	// gpus are all that were listed, for those that are gone; only for set.
	gpus map[string]nvidia.GPU
}

func (d *draOffer) now() (devices.Node, bool) {
	if n := d.current.Load(); n != nil {
		return *n, true
	}
	return devices.Node{}, false
}

// set is called by one goroutine at a time. While nothing is known, what was published stays.
func (d *draOffer) set(name string, now *offer, made ...partition.Record) {
	if now.GPUs.Taken.IsZero() || now.Problem != nil {
		d.current.Store(nil)
		return
	}
	if d.gpus == nil {
		d.gpus = map[string]nvidia.GPU{}
	}
	for _, gpu := range now.GPUs.Node.GPUs {
		d.gpus[gpu.UUID] = gpu
	}
	n := &devices.Node{Name: name, DriverVersion: now.GPUs.Node.DriverVersion, CUDAVersion: now.GPUs.Node.CUDAVersion,
		MemoryEnforcement: d.memoryEnforcement, NotConnected: !now.Connected}
	for _, device := range now.Devices {
		n.Devices = append(n.Devices, d.device(now, device, now.unhealthy(device)))
	}
	for _, device := range now.Gone {
		n.Devices = append(n.Devices, d.device(now, device, cmp.Or(now.unhealthy(device), "the GPU is gone")))
	}
	d.places(n, now, made)
	d.current.Store(n)
}

func (d *draOffer) device(now *offer, of node.Device, problem string) devices.Device {
	gpu := d.gpus[of.GPU]
	device := devices.Device{
		Capacity: of.Capacity(), GPU: gpu, PCIeRoot: d.pcieRoot(hardware.SysfsBusID(gpu.PCIBusID)),
		Problem: problem, Cordoned: ledger.IsCordoned(now.Cordoned, of.UUID, of.GPU),
	}
	if mig, _, known := now.GPUs.Node.MIGDevice(of.UUID); known {
		device.Profile = mig.Profile
	}
	return device
}

// unhealthy returns the reason; "": the device is healthy.
func (o *offer) unhealthy(d node.Device) string {
	if o.healthy(d) {
		return ""
	}
	if o.Stale != nil {
		return o.Stale.Error()
	}
	return cmp.Or(o.GPUs.Health[d.UUID].Reason, o.GPUs.Health[d.GPU].Reason, "no reason given")
}

// pcieRoot is empty where sysfs does not have the GPU.
func pcieRoot(busID string) string {
	attribute, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(busID)
	if err != nil || attribute.Value.StringValue == nil {
		return ""
	}
	return *attribute.Value.StringValue
}
