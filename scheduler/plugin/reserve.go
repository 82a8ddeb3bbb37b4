package plugin

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/engine"
)

const owner = "plugin/" + Name

// Reserve implements fwk.ReservePlugin. If another pod reserved the GPUs first, kube-scheduler
// retries the pod after its backoff, because no event follows.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	if status := p.reserve(c, node); status != nil {
		return status
	}
	p.quotaQueue.remove(object)
	p.informerSync.reserved(node, object)
	return nil
}

func (p *Plugin) reserve(c *cycle, node string) *fwk.Status {
	began := time.Now()
	placement, err := p.engine.Reserve(c.pod, c.request, node, owner)
	p.metrics.Observe(component, "reserve", began, err)
	if err != nil {
		if errors.Is(err, engine.ErrNoRoom) {
			p.metrics.Conflict(component)
		}
		return fwk.AsStatus(err)
	}
	c.placement = &placement
	return nil
}

// Unreserve implements fwk.ReservePlugin. It also rejects the waiting pods of the pod's group. A pod
// that may be bound keeps its reservation until its event or the reservation's timeout.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, object *v1.Pod, _ string) {
	if c := cycleOf(state); c != nil && !c.bindUnknown {
		p.engine.Unreserve(c.pod.UID, owner)
		c.placement = nil
	}
	p.groups.rejectGroup(object, "could not be placed")
}
