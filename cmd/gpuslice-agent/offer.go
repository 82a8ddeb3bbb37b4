package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// offer is what the node offers at one time. It is immutable.
type offer struct {
	GPUs     nvidia.Snapshot
	Settings nodeconfig.Settings
	Sharing  node.Sharing
	// Connected: otherwise schedulers must place no pods.
	Connected bool
	// Devices can be granted; Problem is why there are none.
	Devices []node.Device
	Problem error
	// Gone are offered devices of removed GPUs: unhealthy for the kubelet, and never granted.
	Gone []node.Device

	// Cordoned are GPUs without new containers (gpuslice cordon).
	Cordoned []string

	// Others is what containers have that no scheduler placed, by UUID.
	Others map[string]ledger.Usage

	// Stale is why the reading of the GPUs is too old; nil: it is not.
	Stale error

	capacities map[string]grant.GPU
	contextMiB map[string]int64
	beyond     map[string]float64
	// indices are NVML's at the time of the settings: they change when a GPU vanishes, and a
	// configured index means a GPU.
	indices map[string]int
}

// offerOf: unsettled is why there are no settings yet; then it is empty.
func (o *options) offerOf(gpus nvidia.Snapshot, settings nodeconfig.Settings, unsettled error, last *offer) *offer {
	if last == nil {
		last = &offer{}
	}
	next := &offer{GPUs: gpus, Settings: settings, Sharing: o.sharing(settings), indices: indicesOf(gpus, settings, last)}
	next.Sharing.Excludes = next.excludes
	if next.Problem = unsettled; unsettled == nil {
		next.Devices, next.Problem = next.Sharing.Devices(gpus.Node)
	}
	next.capacities = node.Capacities(next.Devices)
	next.beyond = next.oversubscription()
	next.contextMiB = make(map[string]int64, len(next.Devices))
	for _, d := range next.Devices {
		next.contextMiB[d.UUID] = int64(o.ContextMemoryMiB)
		if gpu, known := gpus.Node.GPU(d.GPU); known && o.ContextMemoryMiB < 0 {
			next.contextMiB[d.UUID] = gpu.ContextMiB()
		}
	}
	for _, list := range [][]node.Device{last.Devices, last.Gone} {
		for _, d := range list {
			_, known := gpus.Health[d.UUID] // a MIG device that was destroyed is dropped
			if known && !present(gpus.Node, d.UUID) && !next.excludes(d.GPU, -1) && !next.excludes(d.UUID, -1) {
				next.Gone = append(next.Gone, d)
			}
		}
	}
	return next
}

func present(n nvidia.Node, uuid string) bool {
	_, gpu := n.GPU(uuid)
	_, _, mig := n.MIGDevice(uuid)
	return gpu || mig
}

// indicesOf keeps the previous indices while the settings are the same.
func indicesOf(gpus nvidia.Snapshot, settings nodeconfig.Settings, last *offer) map[string]int {
	indices := map[string]int{}
	if slices.Equal(settings.Excluded.Indices, last.Settings.Excluded.Indices) {
		maps.Copy(indices, last.indices)
	}
	for _, c := range gpus.Node.GPUs {
		if _, known := indices[c.UUID]; !known {
			indices[c.UUID] = c.Index
		}
	}
	return indices
}

// excludes ignores NVML's current index.
func (o *offer) excludes(uuid string, _ int) bool {
	index, known := o.indices[uuid]
	if !known {
		index = -1
	}
	return o.Settings.Excludes(uuid, index)
}

func (o *offer) missing(uuid string) string {
	c, listed := o.GPUs.Node.GPU(uuid)
	switch {
	case o.Problem != nil:
		return "no GPU is offered: " + o.Problem.Error()
	case o.GPUs.Taken.IsZero():
		return "the GPUs have not been read yet; retrying"
	case o.excludes(uuid, -1):
		return "the node's configuration keeps it from being shared (filterdevices)"
	case listed && c.MIGEnabled:
		return "it is in MIG mode: the kubelet assigns its MIG devices (--mig-strategy)"
	default:
		return ""
	}
}

func (o *offer) oversubscription() map[string]float64 {
	factors := map[string]float64{}
	for _, d := range o.Devices {
		if c, known := o.GPUs.Node.GPU(d.UUID); known && d.MemoryMiB > c.MemoryMiB {
			factors[d.UUID] = float64(d.MemoryMiB) / float64(c.MemoryMiB)
		}
	}
	return factors
}

func (o *offer) healthy(d node.Device) bool {
	own, known := o.GPUs.Health[d.UUID]
	return o.Stale == nil && o.GPUs.Health[d.GPU].Healthy && (!known || own.Healthy)
}

// cordoned returns true for MIG devices only: the kubelet chooses them without the scheduler, and
// the container would be refused.
func (o *offer) cordoned(d node.Device) bool {
	return d.MIG() && ledger.IsCordoned(o.Cordoned, d.UUID, d.GPU)
}

// health is by UUID; unknown for GPUs without a recent reading.
func (o *offer) health() map[string]nvidia.Health {
	if o.Stale == nil {
		return o.GPUs.Health
	}
	health := make(map[string]nvidia.Health, len(o.GPUs.Health))
	for uuid, h := range o.GPUs.Health {
		if h.Healthy {
			h = nvidia.Health{Reason: o.Stale.Error(), Since: o.GPUs.Taken}
		}
		health[uuid] = h
	}
	return health
}

func (o *options) forKubelet(now *offer) map[deviceplugin.Resource][]deviceplugin.GPU {
	offered := map[deviceplugin.Resource][]deviceplugin.GPU{}
	for _, resource := range o.ordinaryResources() {
		offered[resource] = nil
	}
	add := func(d node.Device, healthy bool) {
		gpu := deviceplugin.GPU{UUID: d.UUID, Healthy: healthy, NUMANode: nvidia.NUMAUnknown}
		if c, known := now.GPUs.Node.GPU(d.GPU); known && (now.Settings.NUMATopology == nil || *now.Settings.NUMATopology) {
			gpu.NUMANode = c.NUMANode
		}
		for resource, count := range o.resourcesOf(d) {
			gpu.Devices = count
			offered[resource] = append(offered[resource], gpu)
		}
	}
	for _, d := range now.Devices {
		add(d, now.healthy(d) && !now.cordoned(d))
	}
	for _, d := range now.Gone {
		add(d, false)
	}
	return offered
}

func (o *options) ordinaryResources() []deviceplugin.Resource {
	if o.ResourceProfile == string(profileTencent) {
		core, memory := deviceplugin.Vcuda()
		return []deviceplugin.Resource{core, memory}
	}
	return []deviceplugin.Resource{deviceplugin.Replicas(o.ResourceName)}
}

func (o *options) resourcesOf(d node.Device) map[deviceplugin.Resource]int {
	switch {
	case d.Resource != "":
		domain, _, _ := strings.Cut(o.ResourceName, "/")
		return map[deviceplugin.Resource]int{deviceplugin.Whole(domain+"/"+d.Resource, d.Resource): 1}
	case o.ResourceProfile == string(profileTencent):
		core, memory := deviceplugin.Vcuda()
		return map[deviceplugin.Resource]int{core: d.CorePercent, memory: int(d.MemoryMiB / api.VcudaMemoryMiB)}
	default:
		return map[deviceplugin.Resource]int{deviceplugin.Replicas(o.ResourceName): d.Replicas}
	}
}

func (o *options) policy(s nodeconfig.Settings) deviceplugin.Policy {
	if s.PreferredAllocation != nil && !*s.PreferredAllocation {
		return deviceplugin.InOrder
	}
	return cmp.Or(deviceplugin.Policy(o.AllocationPolicy), deviceplugin.Packed)
}

type profile string

const (
	// profileHAMi is one resource with --device-split-count devices per GPU.
	profileHAMi profile = "hami"
	// profileTencent is gpu-manager's pair: compute time and memory.
	profileTencent profile = "tencent"
)

const (
	registerJSON = "json"
	registerCSV  = "csv"

	apiAuto = "auto"
	apiOn   = "on"
	apiOff  = "off"
)

func (o *options) validateOffer(c *checks) {
	c.want("resource-profile", slices.Contains([]profile{profileHAMi, profileTencent}, profile(o.ResourceProfile)), "hami or tencent", o.ResourceProfile)
	_, err := nvidia.ParseMIGStrategy(o.MIGStrategy)
	c.want("mig-strategy", err == nil && o.MIGStrategy != "", "none, single or mixed", o.MIGStrategy)
	c.want("mig-strategy", o.ResourceProfile != string(profileTencent) || o.MIGStrategy != string(nvidia.MIGSingle),
		"none or mixed with --resource-profile=tencent, which has no resource for whole devices", o.MIGStrategy)
	if o.NodeConfigFile != "" {
		c.absolute("node-config-file", o.NodeConfigFile)
	}
	c.want("kubernetes-api", slices.Contains([]string{apiAuto, apiOn, apiOff}, o.KubernetesAPI), "auto, on or off", o.KubernetesAPI)
	if o.Kubeconfig != "" {
		c.absolute("kubeconfig", o.Kubeconfig)
	}
	_, err = noderegister.ParseCapacity(o.NodeCapacity)
	c.want("node-capacity", err == nil, "memory=NAME, memory-percentage=NAME or cores=NAME with names of extended resources", strings.Join(o.NodeCapacity, ","))
	c.want("register-format", slices.Contains([]string{registerJSON, registerCSV}, o.RegisterFormat), "json or csv", o.RegisterFormat)
}

func (o *options) sharing(s nodeconfig.Settings) node.Sharing {
	sharing := node.Sharing{
		Replicas: o.SplitCount, Memory: o.MemoryScaling, Cores: o.CoresScaling,
		MIG: nvidia.MIGStrategy(o.MIGStrategy), Excludes: s.Excludes,
	}
	if o.ResourceProfile == string(profileTencent) {
		// The smallest share is 1 of 100 cores.
		sharing.Replicas = grant.MaxCorePercent
	} else if s.SplitCount != nil {
		sharing.Replicas = *s.SplitCount
	}
	if s.MemoryScaling != nil {
		sharing.Memory = *s.MemoryScaling
	}
	if s.CoresScaling != nil {
		sharing.Cores = *s.CoresScaling
	}
	if s.MemoryMiB != nil {
		sharing.MemoryMiB = *s.MemoryMiB
	}
	if s.MIGStrategy != "" {
		sharing.MIG = nvidia.MIGStrategy(s.MIGStrategy)
	}
	return sharing
}

func (o *options) checkSettings(s nodeconfig.Settings) error {
	sharing := o.sharing(s)
	var errs []error
	if s.OperatingMode == "mig" && sharing.MIG == nvidia.MIGNone {
		errs = append(errs, errors.New("operatingmode mig: gpuslice does not partition GPUs: create the instances (nvidia-smi mig) and set migstrategy to single or mixed"))
	}
	if o.ResourceProfile == string(profileTencent) && sharing.MIG == nvidia.MIGSingle {
		errs = append(errs, errors.New("migstrategy single: not with --resource-profile=tencent"))
	}
	if o.UnscheduledPolicy == "share" && int(grant.MaxCorePercent*sharing.Cores) < sharing.Replicas {
		errs = append(errs, fmt.Errorf("devicesplitcount %d: gives a share less than 1 %% of compute time, which --unscheduled-policy=share does not support", sharing.Replicas))
	}
	return errors.Join(errs...)
}

func unused(s nodeconfig.Settings) []string {
	var fields []string
	if s.OperatingMode == "mps" {
		fields = append(fields, "operatingmode mps (shared by limits, as hami-core)")
	}
	if s.LogLevel != nil {
		fields = append(fields, "libcudaloglevel (the limiter has no log but its errors)")
	}
	return fields
}
