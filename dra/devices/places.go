package devices

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// Place is where a MIG device of a profile can be made on a GPU.
type Place struct {
	// Device is the GPU, with its health and its cordon, and the profile's name.
	Device
	Kind hardware.MIGProfile
	At   hardware.Place
	// UUID is of the MIG device that was made there for a ResourceClaim; "": none.
	UUID string
	// Occupied: an earlier MIG device can't be destroyed yet.
	Occupied bool
}

// PlacesOf are the places on a GPU where no instance is that the agent did not make. Of a profile the last place comes first: kube-scheduler
// takes the first that is free, and large profiles begin at 0.
func PlacesOf(gpu Device, mine func(hardware.GPUInstance) bool) (all []Place) {
	gpu.OnRequest = true
	foreign := map[int]int{} // by profile
	for _, i := range gpu.GPU.Instances {
		if !mine(i) {
			foreign[i.Profile]++
		}
	}
	gpu.GPU.Profiles = slices.Clone(gpu.GPU.Profiles)
	for i := range gpu.GPU.Profiles {
		gpu.GPU.Profiles[i].Most -= foreign[gpu.GPU.Profiles[i].ID]
	}
	for _, kind := range gpu.GPU.Profiles {
		if kind.Most <= 0 {
			continue
		}
		for _, at := range slices.Backward(kind.Places) {
			if slices.ContainsFunc(gpu.GPU.Instances, func(i hardware.GPUInstance) bool { return i.Place.Overlaps(at) && !mine(i) }) {
				continue
			}
			p := Place{Device: gpu, Kind: kind, At: at}
			p.Profile = kind.Name
			all = append(all, p)
		}
	}
	return all
}

// Name follows from the GPU, the profile and the place. It is a DNS label: "gpu-<UUID>-mig-1g-18gb-me-0".
func (p Place) Name() string {
	profile := strings.NewReplacer(".", "-", "+", "-", "-", "-no-").Replace(p.Kind.Name)
	return fmt.Sprintf("%s-mig-%s-%d", p.Device.Name(), profile, p.At.Start)
}

// Names of counters. A set is a GPU's.
const (
	counterSlices      = "compute-slices"
	counterMemorySlice = "memory-slice-"
	counterProfile     = "profile-"
)

// limited: the profile has more places than a GPU can have instances of it.
func limited(kind hardware.MIGProfile) bool { return kind.Most < len(kind.Places) }

func counter(n int) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

func memorySlices(counters map[string]resourceapi.Counter, at hardware.Place) {
	for slice := at.Start; slice < at.Start+at.Size; slice++ {
		counters[fmt.Sprint(counterMemorySlice, slice)] = counter(1)
	}
}

// counters are what the places of a GPU share, by pool.
func (n Node) counters() map[string][]resourceapi.CounterSet {
	pools := map[string][]resourceapi.CounterSet{}
	for _, p := range n.Places {
		pool := n.Pool(p.Device)
		name := p.Device.Name()
		if slices.ContainsFunc(pools[pool], func(s resourceapi.CounterSet) bool { return s.Name == name }) {
			continue
		}
		set := resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{}}
		most := 0
		for _, kind := range p.GPU.Profiles {
			most = max(most, kind.Slices)
			for _, at := range kind.Places {
				memorySlices(set.Counters, at)
			}
			if limited(kind) {
				set.Counters[fmt.Sprint(counterProfile, kind.ID)] = counter(max(kind.Most, 0))
			}
		}
		set.Counters[counterSlices] = counter(most)
		pools[pool] = append(pools[pool], set)
	}
	return pools
}

func (n Node) place(p Place) resourceapi.Device {
	counters := map[string]resourceapi.Counter{counterSlices: counter(p.Kind.Slices)}
	memorySlices(counters, p.At)
	if limited(p.Kind) {
		counters[fmt.Sprint(counterProfile, p.Kind.ID)] = counter(1)
	}
	device := resourceapi.Device{
		Name: p.Name(), Attributes: n.attributes(p.Device), Taints: n.taints(p.Device),
		Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{capacityMemory: {Value: mib(p.Kind.MemoryMiB)}},
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: p.Device.Name(), Counters: counters}},
	}
	if p.Occupied {
		device.Taints = append(device.Taints, noSchedule(api.TaintOccupied))
	}
	return device
}

func (n Node) placeOf(r resourceapi.DeviceRequestAllocationResult) int {
	return slices.IndexFunc(n.Places, func(p Place) bool { return p.Name() == r.Device && n.Pool(p.Device) == r.Pool })
}

// Allocated are the places that a ResourceClaim has.
func (n Node) Allocated(claim *resourceapi.ResourceClaim) (all []Place) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if i := n.placeOf(r); i >= 0 && r.Driver == api.DRADriver {
			all = append(all, n.Places[i])
		}
	}
	return all
}

func (p Place) share(n Node, r resourceapi.DeviceRequestAllocationResult) (grant.Share, error) {
	if len(r.ConsumedCapacity) > 0 || r.ShareID != nil {
		return grant.Share{}, grant.Errorf(grant.ErrMalformed, "device %s: has a share of a MIG device, which a container has whole", r.Device)
	}
	i := slices.IndexFunc(n.Devices, func(d Device) bool { return p.UUID != "" && d.Capacity.UUID == p.UUID })
	if i < 0 {
		return grant.Share{}, grant.Errorf(grant.ErrUnknownGPU, "device %s: its MIG device is not made yet", r.Device)
	}
	c := n.Devices[i].Capacity
	return grant.Share{UUID: c.UUID, MemoryMiB: c.MemoryMiB, CorePercent: c.CorePercent}, nil
}
