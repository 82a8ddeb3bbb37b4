package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

// ResourceClaim is a ResourceClaim of a pod: what it has, or why it waits.
type ResourceClaim struct {
	Name string `json:"name"`
	Text string `json:"text"`
	// Allocated are the devices of gpuslice's driver that it has.
	Allocated []AllocatedDevice `json:"allocated,omitempty"`
	// Requests are those that wait for a device of the driver, with what each device lacks.
	Requests []ClaimRequest `json:"requests,omitempty"`
}

type AllocatedDevice struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// Ready is the status of the agent's condition, and Text its message; empty: the agent was not asked yet.
	Ready string `json:"ready,omitempty"`
	Text  string `json:"text,omitempty"`
}

type ClaimRequest struct {
	Name    string          `json:"name"`
	Text    string          `json:"text,omitempty"`
	Devices []DeviceVerdict `json:"devices,omitempty"`
}

type DeviceVerdict struct {
	Pool   string `json:"pool"`
	Device string `json:"device"`
	Fits   bool   `json:"fits"`
	Text   string `json:"text"`
}

// resourceClaims explains the ResourceClaims of a pod.
func (c *Cluster) resourceClaims(ctx context.Context, pod *v1.Pod) (all []ResourceClaim, err error) {
	var offered *offers
	for _, reference := range pod.Spec.ResourceClaims {
		name := claimName(pod, reference)
		if name == "" {
			all = append(all, ResourceClaim{Name: reference.Name, Text: "it is not made of its template yet"})
			continue
		}
		claim, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			all = append(all, ResourceClaim{Name: name, Text: "it does not exist"})
			continue
		}
		if err != nil {
			return all, err
		}
		if claim.Status.Allocation != nil {
			all = append(all, allocated(claim))
			continue
		}
		if offered == nil {
			if offered, err = c.offers(ctx); err != nil {
				return all, err
			}
		}
		all = append(all, offered.explain(claim))
	}
	return all, nil
}

func claimName(pod *v1.Pod, reference v1.PodResourceClaim) string {
	if reference.ResourceClaimName != nil {
		return *reference.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == reference.Name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}

func allocated(claim *resourceapi.ResourceClaim) ResourceClaim {
	x := ResourceClaim{Name: claim.Name, Text: "it is allocated"}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != api.DRADriver {
			continue
		}
		d := AllocatedDevice{Request: r.Request, Pool: r.Pool, Device: r.Device}
		for _, s := range claim.Status.Devices {
			same := s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device && (s.ShareID == nil || r.ShareID == nil || *s.ShareID == string(*r.ShareID))
			if ready := meta.FindStatusCondition(s.Conditions, "Ready"); same && ready != nil {
				d.Ready, d.Text = string(ready.Status), ready.Message
			}
		}
		x.Allocated = append(x.Allocated, d)
	}
	return x
}

// offers are the devices of gpuslice's driver, and what is left of them.
type offers struct {
	classes map[string]bool
	devices []offer
}

type offer struct {
	pool string
	resourceapi.Device
	left map[resourceapi.QualifiedName]resource.Quantity
	// taken: it is allocated whole.
	taken bool
}

func (c *Cluster) offers(ctx context.Context) (*offers, error) {
	classes, err := c.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	slices, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + api.DRADriver})
	if err != nil {
		return nil, err
	}
	claims, err := c.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return offersOf(classes.Items, slices.Items, claims.Items), nil
}

func offersOf(classes []resourceapi.DeviceClass, all []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) *offers {
	o := &offers{classes: map[string]bool{}}
	for _, c := range classes {
		o.classes[c.Name] = true
	}
	newest := map[string]int64{}
	for _, s := range all {
		newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	for _, s := range all {
		if s.Spec.Driver != api.DRADriver || s.Spec.Pool.Generation < newest[s.Spec.Pool.Name] {
			continue
		}
		for _, d := range s.Spec.Devices {
			of := offer{pool: s.Spec.Pool.Name, Device: d, left: map[resourceapi.QualifiedName]resource.Quantity{}}
			for name, capacity := range d.Capacity {
				of.left[name] = capacity.Value.DeepCopy()
			}
			o.devices = append(o.devices, of)
		}
	}
	for i := range claims {
		if claims[i].Status.Allocation == nil {
			continue
		}
		for _, r := range claims[i].Status.Allocation.Devices.Results {
			o.take(r)
		}
	}
	slices.SortFunc(o.devices, func(a, b offer) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.Name, b.Name)) })
	return o
}

func (o *offers) take(r resourceapi.DeviceRequestAllocationResult) {
	for i := range o.devices {
		d := &o.devices[i]
		if r.Driver != api.DRADriver || d.pool != r.Pool || d.Name != r.Device {
			continue
		}
		d.taken = d.taken || len(r.ConsumedCapacity) == 0
		for name, quantity := range r.ConsumedCapacity {
			left := d.left[name]
			left.Sub(quantity)
			d.left[name] = left
		}
	}
}

// The DeviceClasses of the chart, by the type of their devices.
var classTypes = map[string]string{"gpu.gpuslice.io": "gpu", "mig.gpuslice.io": "mig"}

func (o *offers) explain(claim *resourceapi.ResourceClaim) ResourceClaim {
	x := ResourceClaim{Name: claim.Name, Text: "it waits for its allocation"}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			x.Requests = append(x.Requests, o.request(r.Name, r.Exactly.DeviceClassName, r.Exactly.Capacity, len(r.Exactly.Selectors)+len(claim.Spec.Devices.Constraints)))
		}
		for _, sub := range r.FirstAvailable {
			x.Requests = append(x.Requests, o.request(r.Name+"/"+sub.Name, sub.DeviceClassName, sub.Capacity, len(sub.Selectors)+len(claim.Spec.Devices.Constraints)))
		}
	}
	return x
}

func (o *offers) request(name, class string, wants *resourceapi.CapacityRequirements, conditions int) ClaimRequest {
	x := ClaimRequest{Name: name}
	kind, ours := classTypes[class]
	switch {
	case !o.classes[class]:
		x.Text = fmt.Sprintf("there is no DeviceClass %s", class)
		return x
	case !ours:
		x.Text = fmt.Sprintf("the DeviceClass %s is not one of gpuslice's chart, and is not explained", class)
		return x
	}
	fit := 0
	for i := range o.devices {
		d := &o.devices[i]
		if t := d.Attributes["type"]; t.StringValue == nil || *t.StringValue != kind {
			continue
		}
		v := DeviceVerdict{Pool: d.pool, Device: d.Name, Text: d.lacks(wants)}
		if v.Fits = v.Text == ""; v.Fits {
			fit++
			v.Text = "it has room"
		}
		x.Devices = append(x.Devices, v)
	}
	switch {
	case len(x.Devices) == 0:
		x.Text = "no node offers a device of DeviceClass " + class
	case fit == 0:
		x.Text = fmt.Sprintf("none of %d devices has room", len(x.Devices))
	case conditions > 0:
		x.Text = fmt.Sprintf("%d of %d devices have room: the selectors and constraints of the ResourceClaim exclude them, or something else of the pod does not fit on their nodes", fit, len(x.Devices))
	default:
		x.Text = fmt.Sprintf("%d of %d devices have room: something else of the pod does not fit on their nodes, or kube-scheduler has not tried yet", fit, len(x.Devices))
	}
	return x
}

// lacks returns why a device can't meet a request; "": it can, as far as capacities and taints show.
func (d *offer) lacks(wants *resourceapi.CapacityRequirements) string {
	var why []string
	for _, t := range d.Taints {
		why = append(why, "it has the taint "+t.Key)
	}
	if d.taken {
		why = append(why, "it is allocated")
	}
	for _, name := range []resourceapi.QualifiedName{"memory", "cores", "slots"} {
		capacity, has := d.Capacity[name]
		if !has || capacity.RequestPolicy == nil {
			continue // it is allocated whole
		}
		want := capacity.Value
		if capacity.RequestPolicy.Default != nil {
			want = *capacity.RequestPolicy.Default
		}
		if wants != nil {
			if q, is := wants.Requests[name]; is {
				want = q
			}
		}
		left := d.left[name]
		switch {
		case want.Cmp(capacity.Value) > 0:
			why = append(why, fmt.Sprintf("%s: the share is too large, %s of %s", name, want.String(), capacity.Value.String()))
		case want.Cmp(left) > 0:
			why = append(why, fmt.Sprintf("%s: %s requested, %s of %s free", name, want.String(), left.String(), capacity.Value.String()))
		}
	}
	return strings.Join(why, "; ")
}
