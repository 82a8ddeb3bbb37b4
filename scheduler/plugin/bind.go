package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

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

// PreBind implements fwk.PreBindPlugin: it removes forged annotations of the scheduler, also of pods
// without GPUs, and with AnnotateWithPatch writes the grant. It is idempotent: annotations of a
// cycle that fails later are replaced by the next one, and are not trusted before the pod is bound.
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
	p.metrics.Observe(component, "annotate", began, err)
	return fwk.AsStatus(err)
}

// Bind implements fwk.BindPlugin for pods with GPUs. DefaultBinder would treat a lost answer as a
// failure and release the GPUs of a running pod; kube.Bind finds out. It reserves once more, because
// a GPU may have failed since Reserve.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	c.bindCalled = true
	if status := p.reserve(c, node); status != nil {
		return status
	}
	began := time.Now()
	annotations, err := p.annotations(c)
	if err == nil {
		err = kube.Bind(ctx, p.handle.ClientSet(), object, node, annotations)
		c.bindUnknown = errors.Is(err, kube.ErrUnknown)
	}
	p.metrics.Observe(component, "bind", began, err)
	return fwk.AsStatus(err)
}

var errBypassed = fmt.Errorf("another plugin binds pods with GPUs without their grant: put %s before it at the bind point of the profile (see install/scheduler/config.yaml)", Name)

// PostBind implements fwk.PostBindPlugin. If another plugin bound the pod, its grant is missing or
// unreserved: GPU scheduling stops.
func (p *Plugin) PostBind(_ context.Context, state fwk.CycleState, object *v1.Pod, node string) {
	if c := cycleOf(state); c != nil && !c.bindCalled {
		p.bypassed.Store(true)
		p.log.Error("GPU scheduling halted: Bind was bypassed", "pod", object.Namespace+"/"+object.Name, "node", node, "error", errBypassed)
	}
}

func (p *Plugin) annotations(c *cycle) (map[string]string, error) {
	if c.placement == nil {
		return nil, errors.New("no GPUs are reserved for the pod")
	}
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	return wire.Annotations(c.pod, *c.placement, key, time.Now())
}

// owned returns the keys of annotations that only the scheduler may write.
func owned(object *v1.Pod) (keys []string) {
	for key := range object.Annotations {
		if wire.IsOwned(key) {
			keys = append(keys, key)
		}
	}
	return keys
}
