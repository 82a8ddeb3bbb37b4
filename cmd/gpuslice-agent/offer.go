package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// offer is what the node offers at one moment. It is not changed once it is made.
type offer struct {
	// GPUs is the look at the GPUs that it is of, and Settings the node's
	// configuration.
	GPUs     nvidia.Snapshot
	Settings nodeconfig.Settings
	Sharing  node.Sharing
	// Guarded says that containers' ways to the GPUs are guarded. Where they aren't,
	// schedulers are to send none.
	Guarded bool
	// Devices may be granted; Problem says why there are none.
	Devices []node.Device
	Problem error
	// Gone are devices that were offered and whose GPU has vanished: the kubelet is
	// told that they are unhealthy, and nothing is granted of them.
	Gone []node.Device

	// Cordoned are the GPUs that get no new container (gpuslice cordon on the node).
	Cordoned []string

	// Stale is why what is known of the GPUs can't be relied on any more; nil: it can.
	Stale error

	capacities map[string]grant.GPU
	contextMiB map[string]int64
	beyond     map[string]float64 // oversubscription's
	// indices are NVML's of the GPUs, as they were when the settings came into force:
	// NVML numbers them again when one vanishes, and who wrote an index meant a GPU.
	indices map[string]int
}

// offerOf makes the next offer. last is the one before, for what has vanished.
// unsettled is why there are no settings yet: then nothing is offered.
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
			_, known := gpus.Health[d.UUID] // a MIG device that was destroyed is forgotten
			if known && !present(gpus.Node, d.UUID) && !next.excludes(d.GPU, -1) && !next.excludes(d.UUID, -1) {
				next.Gone = append(next.Gone, d)
			}
		}
	}
	return next
}

// present says whether a GPU or a MIG device was read.
func present(n nvidia.Node, uuid string) bool {
	_, gpu := n.GPU(uuid)
	_, _, mig := n.MIGDevice(uuid)
	return gpu || mig
}

// indicesOf are the GPUs' indices: those of before while the settings have not changed,
// and of GPUs that are new.
func indicesOf(gpus nvidia.Snapshot, settings nodeconfig.Settings, last *offer) map[string]int {
	indices := map[string]int{}
	if slices.Equal(settings.ExcludedIndices, last.Settings.ExcludedIndices) {
		maps.Copy(indices, last.indices)
	}
	for _, c := range gpus.Node.GPUs {
		if _, known := indices[c.UUID]; !known {
			indices[c.UUID] = c.Index
		}
	}
	return indices
}

// excludes says whether a GPU is not to be shared. What NVML numbers it now is nothing.
func (o *offer) excludes(uuid string, _ int) bool {
	index, known := o.indices[uuid]
	if !known {
		index = -1
	}
	return o.Settings.Excludes(uuid, index)
}

// missing says why the node doesn't offer a GPU that somebody has a grant of.
func (o *offer) missing(uuid string) string {
	c, listed := o.GPUs.Node.GPU(uuid)
	switch {
	case o.Problem != nil:
		return "no GPU is offered: " + o.Problem.Error()
	case o.GPUs.Taken.IsZero():
		return "the GPUs have not been read yet; it will be tried again"
	case o.excludes(uuid, -1):
		return "the node's configuration keeps it from being shared (filterdevices)"
	case listed && c.MIGEnabled:
		return "it is in MIG mode: the kubelet gives out its MIG devices (--mig-strategy)"
	default:
		return ""
	}
}

// oversubscription is how much more of each GPU's memory may be granted than it has.
func (o *offer) oversubscription() map[string]float64 {
	factors := map[string]float64{}
	for _, d := range o.Devices {
		if c, known := o.GPUs.Node.GPU(d.UUID); known && d.MemoryMiB > c.MemoryMiB {
			factors[d.UUID] = float64(d.MemoryMiB) / float64(c.MemoryMiB)
		}
	}
	return factors
}

// healthy says whether a device can be used: it and its GPU are well.
func (o *offer) healthy(d node.Device) bool {
	own, known := o.GPUs.Health[d.UUID]
	return o.Stale == nil && o.GPUs.Health[d.GPU].Healthy && (!known || own.Healthy)
}

// cordoned says whether a device is one that the kubelet gives out by itself and must not:
// of MIG devices no scheduler of ours knows, and a pod that got one would be refused here.
func (o *offer) cordoned(d node.Device) bool {
	return d.MIG() && ledger.IsCordoned(o.Cordoned, d.UUID, d.GPU)
}

// health is that of every GPU and MIG device, by UUID: nobody knows it of one that
// was not looked at lately.
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

// forKubelet are the GPUs of each resource, as the kubelet is told of them.
func (o *options) forKubelet(now *offer) map[deviceplugin.Resource][]deviceplugin.GPU {
	offered := map[deviceplugin.Resource][]deviceplugin.GPU{}
	for _, resource := range o.ordinaryResources() {
		offered[resource] = nil // also where there are no GPUs
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

// ordinaryResources are those that GPUs are offered as.
func (o *options) ordinaryResources() []deviceplugin.Resource {
	if o.ResourceProfile == string(profileTencent) {
		core, memory := deviceplugin.Vcuda()
		return []deviceplugin.Resource{core, memory}
	}
	return []deviceplugin.Resource{deviceplugin.Replicas(o.ResourceName)}
}

// resourcesOf are the resources that a device is offered as, and how many of each.
func (o *options) resourcesOf(d node.Device) map[deviceplugin.Resource]int {
	switch {
	case d.Resource != "":
		domain, _, _ := strings.Cut(o.ResourceName, "/")
		return map[deviceplugin.Resource]int{deviceplugin.Whole(domain+"/"+d.Resource, d.Resource): 1}
	case o.ResourceProfile == string(profileTencent):
		core, memory := deviceplugin.Vcuda()
		return map[deviceplugin.Resource]int{core: d.CorePercent, memory: int(d.MemoryMiB / deviceplugin.VcudaMemoryMiB)}
	default:
		return map[deviceplugin.Resource]int{deviceplugin.Replicas(o.ResourceName): d.Slots}
	}
}

// policy is how the kubelet is told to choose.
func (o *options) policy(s nodeconfig.Settings) deviceplugin.Policy {
	if s.PreferredAllocation != nil && !*s.PreferredAllocation {
		return deviceplugin.InOrder
	}
	return cmp.Or(deviceplugin.Policy(o.AllocationPolicy), deviceplugin.Packed)
}
