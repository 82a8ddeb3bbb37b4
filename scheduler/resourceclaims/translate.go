// Package resourceclaims translates requests of pods for GPUs (HAMi's resources and annotations, gpu-manager's resources) into
// ResourceClaims for gpuslice's DRA driver. [Translate] decides; [Templates] creates the ResourceClaimTemplates, and removes them.
package resourceclaims

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// requestName is the name of the one request of each ResourceClaim.
const requestName = "gpu"

// Claim is a ResourceClaim that containers of a pod get.
type Claim struct {
	Spec resourceapi.ResourceClaimSpec
	// Containers are positions in Pod.Containers. Containers with one ResourceClaim never run at the same time.
	Containers []int
}

// Translation is what a pod's request means for DRA.
type Translation struct {
	Claims []Claim
	// Warnings name annotations that have no effect.
	Warnings []string
}

// Sizes are the memory in MiB of the devices that the cluster offers, in ascending order.
type Sizes struct{ GPUs, MIG []int64 }

// NeedsSizes reports whether the request is a part of the GPU's memory, so that its amount differs between GPUs, or can be a MIG
// device.
func NeedsSizes(r *request.Request) bool {
	return slices.ContainsFunc(r.Containers, func(c request.Container) bool { return partial(&c) || orMIG(&c, &r.Rules) })
}

func partial(c *request.Container) bool {
	return c.GPUs > 0 && c.MemoryMiB == 0 && c.MemoryPercent > 0 && c.MemoryPercent < 100
}

// Translate returns ResourceClaims with the limits of the request. Only NeedsSizes requires sizes. Errors are *request.Error.
func Translate(pod *scheduler.Pod, r *request.Request, names *request.Names, sizes Sizes) (*Translation, error) {
	if err := refuse(pod, &r.Rules); err != nil {
		return nil, err
	}
	selectors, err := selectors(&r.Rules)
	if err != nil {
		return nil, err
	}
	t := &Translation{Warnings: warnings(pod)}
	for i := range r.Containers {
		c := &r.Containers[i]
		if c.GPUs == 0 {
			continue
		}
		if k := t.reusable(pod, r, i); k >= 0 {
			t.Claims[k].Containers = append(t.Claims[k].Containers, i)
			continue
		}
		spec, err := claimSpec(c, &r.Rules, selectors, sizes)
		if err != nil {
			return nil, &request.Error{Container: pod.Containers[i].Name, Key: cmp.Or(names.MemoryPercentage, api.ResourceMemoryPercentage),
				Value: strconv.Itoa(c.MemoryPercent), Why: err.Error()}
		}
		t.Claims = append(t.Claims, Claim{Spec: spec, Containers: []int{i}})
	}
	return t, nil
}

// reusable returns the ResourceClaim of init containers with the same request, all of which end before container i starts; -1:
// none. Kubernetes keeps a ResourceClaim until the pod ends, so one of its own would hold a GPU for nothing.
func (t *Translation) reusable(pod *scheduler.Pod, r *request.Request, i int) int {
	if pod.Containers[i].Kind == scheduler.Sidecar {
		return -1
	}
	return slices.IndexFunc(t.Claims, func(c Claim) bool {
		return r.Containers[c.Containers[0]] == r.Containers[i] &&
			!slices.ContainsFunc(c.Containers, func(k int) bool { return pod.Containers[k].Kind != scheduler.Init })
	})
}

// refuse returns an error for what ResourceClaims can't express.
func refuse(pod *scheduler.Pod, rules *request.Rules) error {
	cannot := func(key, why string) error {
		return &request.Error{Key: key, Value: strconv.Quote(pod.Annotations[key]), Why: "the request becomes a ResourceClaim here, " + why + ": remove the annotation"}
	}
	if !rules.ModeFits(api.ModeShared) {
		return cannot(api.AnnotationMode, "which gets shares of GPUs ("+api.ModeShared+") only")
	}
	if policy, err := choose.ParseGPUPolicy(rules.GPUPolicy); err == nil && policy.Mutex {
		return cannot(api.AnnotationGPUPolicy, "which can't exclude GPUs that other containers use ("+choose.Mutex+")")
	}
	for _, key := range []string{api.AnnotationGroupMin, api.AnnotationGroupTopology} {
		if _, there := pod.Annotations[key]; there {
			return cannot(key, "and only gpuslice's own requests are placed by group")
		}
	}
	return nil
}

// warnings name preferences that kube-scheduler's allocator does not have: it takes the first device that fits.
func warnings(pod *scheduler.Pod) []string {
	var list []string
	for _, key := range []string{api.AnnotationNodePolicy, api.AnnotationGPUPolicy, api.AnnotationWeights, api.AnnotationMinMemory} {
		if strings.TrimSpace(pod.Annotations[key]) != "" {
			list = append(list, "annotation "+key+" has no effect: the request becomes a ResourceClaim")
		}
	}
	return list
}

// claimSpec has all defaults of the API server, so that it can be compared with a stored one.
func claimSpec(c *request.Container, rules *request.Rules, selectors []resourceapi.DeviceSelector, sizes Sizes) (resourceapi.ResourceClaimSpec, error) {
	r := resourceapi.DeviceRequest{Name: requestName}
	rulesOnly := selectors
	if c.LeastMiB > 0 {
		selectors = append(slices.Clone(selectors), atLeast(c.LeastMiB))
	}
	if orMIG(c, rules) {
		r.FirstAvailable = append(smallest(c.LeastMiB, rulesOnly, sizes.MIG), resourceapi.DeviceSubRequest{
			Name: "mig", DeviceClassName: api.DeviceClassMIG, Selectors: selectors, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}, resourceapi.DeviceSubRequest{
			Name: "gpu", DeviceClassName: api.DeviceClassGPU, Selectors: selectors, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: capacity(c.MemoryMiB, c.Cores),
		})
	} else if partial(c) {
		if err := checkSizes(sizes.GPUs); err != nil {
			return resourceapi.ResourceClaimSpec{}, err
		}
		for _, size := range sizes.GPUs {
			r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: "mib-" + strconv.FormatInt(size, 10), DeviceClassName: api.DeviceClassGPU, Selectors: append(slices.Clone(selectors), ofSize(size)),
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(c.GPUs), Capacity: capacity(c.Memory(size), c.Cores),
			})
		}
	} else {
		r.Exactly = &resourceapi.ExactDeviceRequest{
			DeviceClassName: api.DeviceClassGPU, Selectors: selectors,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(c.GPUs), Capacity: capacity(c.MemoryMiB, c.Cores),
		}
	}
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}}
	if rules.NUMABind && c.GPUs > 1 {
		same := resourceapi.FullyQualifiedName(api.DRADriver + "/" + api.DRAAttributeNUMA)
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{requestName}, MatchAttribute: &same}}
	}
	return spec, nil
}

// smallest requests a MIG device of each size that is enough, the smallest first, because kube-scheduler takes the first device
// that fits. Two places of the list are left: for MIG devices of any size, and for a GPU.
func smallest(least int64, selectors []resourceapi.DeviceSelector, sizes []int64) (list []resourceapi.DeviceSubRequest) {
	for _, size := range sizes {
		if size >= least && len(list) < resourceapi.FirstAvailableDeviceRequestMaxSize-2 {
			list = append(list, resourceapi.DeviceSubRequest{
				Name: "mig-mib-" + strconv.FormatInt(size, 10), DeviceClassName: api.DeviceClassMIG, Selectors: append(slices.Clone(selectors), ofSize(size)),
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			})
		}
	}
	return list
}

// orMIG: hardware isolation can be a MIG device. A compute share of a GPU can't be compared with one, UUIDs in requests are those of
// GPUs, and a CUDA program uses one MIG device.
func orMIG(c *request.Container, rules *request.Rules) bool {
	return c.LeastMiB > 0 && c.LeastCores == 0 && c.GPUs == 1 && len(rules.UseUUIDs)+len(rules.AvoidUUIDs) == 0
}

func checkSizes(sizes []int64) error {
	switch {
	case len(sizes) == 0:
		return fmt.Errorf("the request becomes a ResourceClaim here, with an amount for each size of GPU, and no GPU is offered: "+
			"request memory in MiB by %s, or create the pod again when there are GPUs", api.ResourceMemory)
	case len(sizes) > resourceapi.FirstAvailableDeviceRequestMaxSize:
		return fmt.Errorf("the request becomes a ResourceClaim here, with an amount for each size of GPU, and there are %d sizes, "+
			"more than the maximum of %d: request memory in MiB by %s", len(sizes), resourceapi.FirstAvailableDeviceRequestMaxSize, api.ResourceMemory)
	}
	return nil
}

// capacity requests no memory for 0: then a device gives all that it has.
func capacity(memoryMiB int64, cores int) *resourceapi.CapacityRequirements {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	if memoryMiB > 0 {
		requests[api.DRACapacityMemory] = mib(memoryMiB)
	}
	if cores > 0 {
		requests[api.DRACapacityCores] = *resource.NewQuantity(int64(cores), resource.DecimalSI)
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourceapi.CapacityRequirements{Requests: requests}
}

func mib(n int64) resource.Quantity { return *resource.NewQuantity(n<<20, resource.BinarySI) }
