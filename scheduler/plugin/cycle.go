package plugin

import (
	"fmt"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const cycleKey fwk.StateKey = Name

// cycle is what is known of a pod while kube-scheduler places it.
type cycle struct {
	pod        *scheduler.Pod
	request    *request.Request
	evaluation *engine.Evaluation
	// quotas is refused's count from before the evaluation.
	quotas uint64
	// resized is the engine's count from before the evaluation.
	resized uint64
	// overlay is what would be, for preemption; nil: what is.
	overlay *engine.Overlay
	// placement is what Reserve has booked; nil: nothing.
	placement *scheduler.Placement
	// offered says that Bind was called, and unknown that it could not find out whether the
	// pod was bound.
	offered, unknown bool
}

// Clone implements fwk.StateData. An overlay isn't changed but replaced, so that clones
// have nothing in common that one of them could change.
func (c *cycle) Clone() fwk.StateData {
	clone := *c
	return &clone
}

// cycleOf is the pod's; nil for a pod that asks for no GPU.
func cycleOf(state fwk.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

// verdict is the node's, with what AddPod and RemovePod have changed.
func (c *cycle) verdict(node string) engine.Verdict {
	if c.overlay != nil {
		return c.evaluation.On(c.overlay, node)
	}
	return c.evaluation.Verdict(node)
}

// lost is for a cycle that PreFilter must have begun.
func lost(point string) *fwk.Status {
	return fwk.AsStatus(fmt.Errorf("%s: PreFilter was not called: is %s enabled at all its extension points (multiPoint)?", point, Name))
}
