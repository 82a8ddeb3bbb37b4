package engine

import (
	"slices"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Put places the evaluated pod on the node as Reserve would, wherever it has GPUs in the snapshot; ok is false if it
// does not fit.
func (v *Evaluation) Put(o *Overlay, node string, r *request.Request) (_ *Overlay, ok bool) {
	n := o.state.node(node)
	if verdict := v.On(o, node); n == nil || !verdict.Fits {
		return o, false
	}
	n = n.without(v.pod.UID)
	f := v.fitter()
	defer f.release()
	if out := f.fit(n); !out.fits {
		return o, false
	}
	h := newAllocation(v.pod, scheduler.Placement{Node: node, Containers: f.shares(r)})
	h.charge = quotaCharge(h, n)
	return o.set(n.with(h), quotaChange{h.uid, h.namespace, h.charge, true}), true
}

// GPUs returns the UUIDs of the GPUs that the pod has on the node.
func (o *Overlay) GPUs(node, podUID string) (uuids []string) {
	if h := o.state.node(node).allocation(podUID); h != nil {
		for _, use := range h.byUUID {
			uuids = append(uuids, use.uuid)
		}
	}
	return uuids
}

// Shrink lowers the memory of a pod's shares to at most mib. less is what each container has then, by position.
func (o *Overlay) Shrink(node, podUID string, mib int64) (_ *Overlay, less [][]grant.Share) {
	h := o.state.node(node).allocation(podUID)
	if h == nil {
		return o, nil
	}
	next := *h
	next.placement.Containers = make([][]grant.Share, len(h.placement.Containers))
	for i, shares := range h.placement.Containers {
		next.placement.Containers[i] = slices.Clone(shares)
		for j := range next.placement.Containers[i] {
			s := &next.placement.Containers[i][j]
			s.MemoryMiB = min(s.MemoryMiB, mib)
		}
	}
	containers := make([]scheduler.Container, len(h.kinds))
	for i, kind := range h.kinds {
		containers[i].Kind = kind
	}
	lower := scheduler.Uses(containers, next.placement.Containers)
	next.byUUID = slices.Clone(h.byUUID)
	for i := range next.byUUID {
		next.byUUID[i].use = lower[next.byUUID[i].uuid]
	}
	o = o.Without(node, podUID)
	n := o.state.node(node)
	next.charge = quotaCharge(&next, n)
	return o.set(n.with(&next), quotaChange{next.uid, next.namespace, next.charge, true}), next.placement.Containers
}

// BestOn is the node of those with the highest score for the pod, the first among equals; "": it fits on none.
func (v *Evaluation) BestOn(o *Overlay, nodes []string) string { return v.best(o, nodes) }

// Restore gives a removed pod its place in the snapshot back.
func (o *Overlay) Restore(node, podUID string) *Overlay {
	h := o.base.node(node).allocation(podUID)
	if h == nil || o.state.node(node).allocation(podUID) != nil {
		return o
	}
	return o.set(o.state.node(node).with(h), quotaChange{h.uid, h.namespace, h.charge, true})
}
