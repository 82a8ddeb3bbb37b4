package plugin

import (
	"fmt"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const cycleKey fwk.StateKey = Name

// cycle is the state of a pod's scheduling cycle.
type cycle struct {
	pod        *scheduler.Pod
	request    *request.Request
	evaluation *engine.Evaluation
	// quotas and resized are versions from before the evaluation.
	quotas, resized uint64
	// overlay has the changes of AddPod and RemovePod; nil: none.
	overlay *engine.Overlay
	// placement is what Reserve reserved; nil: nothing.
	placement *scheduler.Placement
	// bindUnknown: Bind could not find out whether the pod was bound.
	bindCalled, bindUnknown bool
}

// Clone implements fwk.StateData. An overlay is never changed, only replaced.
func (c *cycle) Clone() fwk.StateData {
	clone := *c
	return &clone
}

// cycleOf returns nil for a pod that requests no GPU.
func cycleOf(state fwk.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

func (c *cycle) verdict(node string) engine.Verdict {
	if c.overlay != nil {
		return c.evaluation.On(c.overlay, node)
	}
	return c.evaluation.Verdict(node)
}

// missingPreFilter is the status of an extension point without a cycle.
func missingPreFilter(point string) *fwk.Status {
	return fwk.AsStatus(fmt.Errorf("%s: PreFilter was not called: enable %s at all extension points (multiPoint)", point, Name))
}
