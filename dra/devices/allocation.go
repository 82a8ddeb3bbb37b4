package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Allocation is what a ResourceClaim has of the node's devices.
type Allocation struct {
	// Requests are the shares by request.
	Requests map[string][]grant.Share
	// Results are the allocated devices, in the order of the ResourceClaim.
	Results []Result
}

// Result is one allocated device.
type Result struct {
	Request, Pool, Device string
	ShareID               *types.UID
	Share                 grant.Share
}

// Shares are the sums of all requests.
func (a Allocation) Shares() (sum []grant.Share) {
	for _, request := range slices.Sorted(maps.Keys(a.Requests)) {
		sum = prepared.Add(sum, a.Requests[request]...)
	}
	return sum
}

// Allocation reads what Kubernetes' scheduler allocated to a ResourceClaim. Results of other drivers are not this
// driver's. An error refuses all of the ResourceClaim; it is ErrMalformed, ErrUnknownGPU or ErrOverbooked of package
// grant.
func (n Node) Allocation(claim *resourceapi.ResourceClaim) (Allocation, error) {
	a, err := n.allocation(claim)
	if err != nil {
		return Allocation{}, fmt.Errorf("ResourceClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return a, nil
}

func (n Node) allocation(claim *resourceapi.ResourceClaim) (Allocation, error) {
	a := Allocation{Requests: map[string][]grant.Share{}}
	if claim.Status.Allocation == nil {
		return a, grant.Errorf(grant.ErrMalformed, "is not allocated")
	}
	for _, c := range claim.Status.Allocation.Devices.Config {
		if c.Opaque != nil && c.Opaque.Driver == api.DRADriver {
			return a, grant.Errorf(grant.ErrMalformed, "has parameters for %s, which knows none: remove config from the ResourceClaim or the DeviceClass", api.DRADriver)
		}
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != api.DRADriver {
			continue
		}
		request, _, _ := strings.Cut(r.Request, "/") // a subrequest of a prioritised list
		share, err := n.share(r)
		if err != nil {
			return a, fmt.Errorf("request %s: %w", quote.Short(r.Request), err)
		}
		a.Requests[request] = prepared.Add(a.Requests[request], share)
		a.Results = append(a.Results, Result{request, r.Pool, r.Device, r.ShareID, share})
	}
	if len(a.Results) == 0 {
		return a, grant.Errorf(grant.ErrMalformed, "has no device of %s", api.DRADriver)
	}
	gpus := map[string]grant.GPU{}
	for _, d := range n.Devices {
		gpus[d.Capacity.UUID] = d.Capacity
	}
	sum := a.Shares()
	if err := grant.ValidateShares(sum); err != nil {
		return a, err
	}
	return a, grant.CheckGPUs(sum, gpus)
}

func (n Node) share(r resourceapi.DeviceRequestAllocationResult) (grant.Share, error) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return grant.Share{}, grant.Errorf(grant.ErrMalformed, "adminAccess: gpuslice gives no container access beside the shares of others; request a share")
	}
	if i := n.placeOf(r); i >= 0 {
		return n.Places[i].share(n, r)
	}
	i := slices.IndexFunc(n.Devices, func(d Device) bool { return !d.OnRequest && d.Name() == r.Device && n.Pool(d) == r.Pool })
	if i < 0 {
		return grant.Share{}, grant.Errorf(grant.ErrUnknownGPU, "device %s of pool %s: this node has no such device, or no longer offers it: delete the pod and its ResourceClaim, so that it is allocated again",
			quote.Short(r.Device), quote.Short(r.Pool))
	}
	d := n.Devices[i]
	if d.isMIG() {
		if len(r.ConsumedCapacity) > 0 || r.ShareID != nil {
			return grant.Share{}, grant.Errorf(grant.ErrMalformed, "device %s: has a share of a MIG device, which a container has whole", r.Device)
		}
		return grant.Share{UUID: d.Capacity.UUID, MemoryMiB: d.Capacity.MemoryMiB, CorePercent: d.Capacity.CorePercent}, nil
	}
	if r.ShareID == nil || len(r.ConsumedCapacity) == 0 {
		return grant.Share{}, grant.Errorf(grant.ErrMalformed, "device %s: is allocated without capacities: kube-scheduler and the API server need the feature DRAConsumableCapacity (Kubernetes 1.36)", r.Device)
	}
	amounts, err := d.consumed(r.ConsumedCapacity)
	if err != nil {
		return grant.Share{}, fmt.Errorf("device %s: %w", r.Device, err)
	}
	return grant.Share{UUID: d.Capacity.UUID, MemoryMiB: amounts[capacityMemory], CorePercent: int(amounts[capacityCores])}, nil
}

// consumed returns the amounts by capacity: MiB, percent, slots.
func (d Device) consumed(capacity map[resourceapi.QualifiedName]resource.Quantity) (map[resourceapi.QualifiedName]int64, error) {
	amounts := map[resourceapi.QualifiedName]int64{}
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		q := capacity[name]
		unit, least, most := int64(1), int64(0), int64(grant.MaxCorePercent)
		switch name {
		case capacityMemory:
			unit, least, most = mebibyte, 1, d.Capacity.MemoryMiB
		case capacityCores:
			most = min(most, int64(d.Capacity.CorePercent))
		case capacitySlots:
			least, most = 1, 1
		default:
			return nil, grant.Errorf(grant.ErrMalformed, "has an unknown capacity %s", quote.Short(string(name)))
		}
		n, exact := q.AsInt64()
		if !exact || n%unit != 0 {
			return nil, grant.Errorf(grant.ErrMalformed, "capacity %s: %s is not a multiple of %d", name, q.String(), unit)
		}
		if n /= unit; n < least || n > most {
			return nil, grant.Errorf(grant.ErrOverbooked, "capacity %s: %s is not from %d to %d (units of %d)", name, q.String(), least, most, unit)
		}
		amounts[name] = n
	}
	for _, name := range []resourceapi.QualifiedName{capacityMemory, capacityCores, capacitySlots} {
		if _, ok := amounts[name]; !ok {
			return nil, grant.Errorf(grant.ErrMalformed, "capacity %s: is missing", name)
		}
	}
	return amounts, nil
}
