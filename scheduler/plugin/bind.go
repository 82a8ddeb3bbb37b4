package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// PreBindPreFlight implements fwk.PreBindPlugin.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, object *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if len(owned(object)) == 0 && (cycleOf(state) == nil || p.args.Annotate == AnnotateWithBinding) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
}

// PreBind implements fwk.PreBindPlugin: in one write, what the pod has brought along of the
// scheduler's annotations goes, of a pod without cards too, and ours come unless Bind
// writes them. It is idempotent: a cycle that fails later leaves annotations that the next
// one replaces, and that nobody believes of a pod that isn't bound.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, object *v1.Pod, _ string) *fwk.Status {
	began := time.Now()
	var set map[string]string
	if c := cycleOf(state); c != nil {
		annotations, err := p.annotations(c)
		if err != nil {
			return fwk.AsStatus(err)
		}
		set = annotations
	}
	remove := slices.DeleteFunc(owned(object), func(key string) bool { return set[key] != "" })
	if p.args.Annotate == AnnotateWithBinding {
		set = nil
	}
	err := kube.Annotate(ctx, p.handle.ClientSet(), object, set, remove)
	p.metrics.Took(door, "annotate", began, err)
	return fwk.AsStatus(err)
}

// Bind implements fwk.BindPlugin.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil || p.args.Annotate != AnnotateWithBinding {
		return fwk.NewStatus(fwk.Skip)
	}
	began := time.Now()
	annotations, err := p.annotations(c)
	if err == nil {
		err = kube.Bind(ctx, p.handle.ClientSet(), object, node, annotations)
	}
	p.metrics.Took(door, "bind", began, err)
	return fwk.AsStatus(err)
}

// annotations are what the pod gets.
func (p *Plugin) annotations(c *cycle) (map[string]string, error) {
	if c.placement == nil {
		return nil, errors.New("the pod's cards are not reserved")
	}
	var key *grant.Key
	if p.keys != nil {
		if err := p.keys.Ready(); err != nil {
			return nil, fmt.Errorf("grants have to be signed: %w", err)
		}
		current := p.keys.Current()
		key = &current
	}
	return wire.Annotations(c.pod, *c.placement, key, time.Now())
}

// owned are the pod's annotations that only the scheduler may write.
func owned(object *v1.Pod) (keys []string) {
	for key := range object.Annotations {
		if wire.IsOwned(key) {
			keys = append(keys, key)
		}
	}
	return keys
}
