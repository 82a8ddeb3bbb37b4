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

// PreBind implements fwk.PreBindPlugin: in one write, what the pod has brought along of the
// scheduler's annotations goes, of a pod without GPUs too, and ours come unless Bind
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
	p.metrics.Observe(component, "annotate", began, err)
	return fwk.AsStatus(err)
}

// Bind implements fwk.BindPlugin, for pods with GPUs: kube.Bind alone finds out, where an
// answer was lost, whether the pod was bound. If that were taken for a failure, the GPUs of
// a pod that runs would be given back. The booking is asked for once more: a GPU may have
// failed since, and one that was forgotten is not free by right.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	c.offered = true
	if status := p.reserve(c, node); status != nil {
		return status
	}
	began := time.Now()
	annotations, err := p.annotations(c)
	if err == nil {
		err = kube.Bind(ctx, p.handle.ClientSet(), object, node, annotations)
		c.unknown = errors.Is(err, kube.ErrUnknown)
	}
	p.metrics.Observe(component, "bind", began, err)
	return fwk.AsStatus(err)
}

var errBypassed = fmt.Errorf("another plugin binds pods with GPUs, without their grant: %s has to be before it at the bind point of the profile (install/scheduler/config.yaml)", Name)

// PostBind implements fwk.PostBindPlugin. A pod that was bound past Bind has no grant, or
// one that may not be counted: the first that this happens to is the last.
func (p *Plugin) PostBind(_ context.Context, state fwk.CycleState, object *v1.Pod, node string) {
	if c := cycleOf(state); c != nil && !c.offered {
		p.bypassed.Store(true)
		p.log.Error("no pods with GPUs are placed any more", "pod", object.Namespace+"/"+object.Name, "node", node, "error", errBypassed)
	}
}

// annotations are what the pod gets.
func (p *Plugin) annotations(c *cycle) (map[string]string, error) {
	if c.placement == nil {
		return nil, errors.New("the pod's GPUs are not reserved")
	}
	key, err := p.key()
	if err != nil {
		return nil, err
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
