package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, object *v1.Pod,
	_ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if len(owned(object)) == 0 && (cycleOf(state) == nil || p.args.Annotate == AnnotateWithBinding) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
}

// PreBind implements fwk.PreBindPlugin: it removes forged annotations, also of pods without GPUs,
// and with AnnotateWithPatch writes the grant. If the cycle fails later, the next one replaces
// them.
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
	term, err := p.takeover().Fence.Term()
	if err == nil {
		err = kube.Annotate(ctx, p.handle.ClientSet(), term, object, set, remove)
	}
	p.metrics.Observe(component, "annotate", began, err)
	return fwk.AsStatus(err)
}

// Bind implements fwk.BindPlugin. DefaultBinder would treat a lost answer as a failure and release
// GPUs of a running pod. It reserves again, because a GPU may have failed.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	c.bindCalled = true
	term, err := p.takeover().Term(ctx)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if status := p.reserve(c, node); status != nil {
		return status
	}
	began := time.Now()
	annotations, err := p.annotations(c)
	if err == nil {
		err = kube.Bind(ctx, p.handle.ClientSet(), term, object, node, annotations)
		c.bindUnknown = errors.Is(err, kube.ErrUnknown)
	}
	p.metrics.Observe(component, "bind", began, err)
	return fwk.AsStatus(err)
}

var errBypassed = fmt.Errorf("another plugin binds pods with GPUs without their grant: put %s before it at the bind "+
	"point of the profile (see install/scheduler/config.yaml)", Name)

// PostBind implements fwk.PostBindPlugin. A pod that another plugin bound has no grant: GPU
// scheduling stops.
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
	return wire.Annotations(c.pod, *c.placement, p.keys.Current(), time.Now())
}

func owned(object *v1.Pod) (keys []string) {
	for key := range object.Annotations {
		if api.IsOwned(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

const owner = "plugin/" + Name

// Reserve implements fwk.ReservePlugin. After a conflict, kube-scheduler retries the pod after its
// backoff.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, object *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	if _, err := p.takeover().Term(ctx); err != nil {
		return fwk.AsStatus(err)
	}
	if status := p.reserve(c, node); status != nil {
		return status
	}
	p.forget(object)
	p.informerSync.reserved(node, object)
	return nil
}

func (p *Plugin) reserve(c *cycle, node string) *fwk.Status {
	began := time.Now()
	placement, err := p.engine.Reserve(c.pod, c.request, node, owner)
	p.metrics.Observe(component, "reserve", began, err)
	if err != nil {
		if errors.Is(err, engine.ErrNoFit) {
			p.metrics.Conflict(component)
		}
		return fwk.AsStatus(err)
	}
	c.placement = &placement
	return nil
}

// Unreserve implements fwk.ReservePlugin. A pod that may be bound keeps its reservation until its
// event or the timeout.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, object *v1.Pod, _ string) {
	if c := cycleOf(state); c != nil && !c.bindUnknown {
		p.engine.Unreserve(c.pod.UID, owner)
		c.placement = nil
	}
	p.groups.rejectGroup(object, "could not be placed")
}

// eventsOf records events with that action.
func eventsOf(handle fwk.Handle, action string) func(pod *v1.Pod, kind, reason, message string) {
	return func(pod *v1.Pod, kind, reason, message string) {
		if recorder := handle.EventRecorder(); recorder != nil {
			recorder.Eventf(pod, nil, kind, reason, action, "%s", message)
		}
	}
}

func (f *Factory) resizer(s *shared, handle fwk.Handle) kube.ResizerConfig {
	return kube.ResizerConfig{
		Engine: s.engine, Client: handle.ClientSet(), Keys: s.keys, Log: s.log,
		Term: func(ctx context.Context) (fence.Term, error) {
			if !s.feed.Synced() {
				return fence.Term{}, errors.New("reading the cluster's nodes and pods")
			}
			return s.takeover().Term(ctx)
		},
		Ours: func(name string) bool {
			_, is := f.profiles.Load(name)
			return is
		},
		Event: eventsOf(handle, "Resize"),
	}
}

// resizeSink retries pending pods when a share became smaller.
type resizeSink struct {
	*engine.Engine
	handle fwk.Handle
}

func (s resizeSink) SetPod(p *scheduler.Pod) {
	kube.SetPod(s.Engine, p, func(pending *v1.Pod) { activate(s.handle, pending) })
}
