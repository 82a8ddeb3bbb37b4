package extender

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

func (s *Server) bind(ctx context.Context, args *extenderv1.ExtenderBindingArgs) (*extenderv1.ExtenderBindingResult, error) {
	if err := s.bindPod(ctx, args); err != nil {
		err = fmt.Errorf("bind pod %s/%s to node %s: %w", args.PodNamespace, args.PodName, args.Node, err)
		s.Log.Warn("failed to bind pod", "pod", args.PodNamespace+"/"+args.PodName, "node", args.Node, "error", err)
		return &extenderv1.ExtenderBindingResult{Error: err.Error()}, err
	}
	return &extenderv1.ExtenderBindingResult{}, nil
}

func (s *Server) bindPod(ctx context.Context, args *extenderv1.ExtenderBindingArgs) error {
	object, err := s.Cluster.pod(ctx, args.PodNamespace, args.PodName, args.PodUID)
	if err != nil {
		return err
	}
	if object.Spec.NodeName == args.Node {
		return nil // the answer to an earlier call was lost
	}
	pod, r, err := s.request(object)
	if err != nil {
		return err
	}
	if r == nil {
		return kube.Bind(ctx, s.Cluster.client, object, args.Node, nil)
	}
	placement, err := s.Engine.Reserve(pod, r, args.Node, owner(pod.UID))
	if err != nil {
		if errors.Is(err, engine.ErrNoFit) {
			s.Metrics.Conflict(component)
		}
		return err
	}
	err = s.waitForGroup(ctx, pod, r)
	var annotations map[string]string
	if err == nil {
		annotations, err = wire.Annotations(pod, placement, s.Keys.Current(), s.Clock())
	}
	if err == nil {
		err = kube.Bind(ctx, s.Cluster.client, object, args.Node, annotations)
	}
	// Without an answer of the API server the pod may be bound: then the reservation stays until
	// the pod's event or the engine's timeout.
	if err != nil && ctx.Err() == nil && !errors.Is(err, kube.ErrUnknown) {
		s.Engine.Unreserve(pod.UID, owner(pod.UID))
	}
	return err
}

// waitForGroup does not wait if pods of the group are bound: then the pod replaces one that failed.
func (s *Server) waitForGroup(ctx context.Context, pod *scheduler.Pod, r *request.Request) error {
	group := r.Rules.Group
	if group == "" || r.Rules.GroupMin < 2 || s.Cluster.bound(pod.Namespace, group) > 0 {
		return nil
	}
	return s.groups.wait(ctx, s.GroupTimeout, pod.Namespace+"/"+group, pod.UID, r.Rules.GroupMin)
}

// DefaultGroupTimeout is less than kube-scheduler's httpTimeout (30 s in the shipped
// configuration).
const DefaultGroupTimeout = 25 * time.Second

// groups have the pods that wait in bind.
type groups struct {
	mu     sync.Mutex
	byName map[string]*group
}

type group struct {
	pods     map[string]bool
	complete chan struct{}
}

func newGroups() *groups { return &groups{byName: map[string]*group{}} }

// wait returns when minimum pods of the group wait; after the timeout the pod no longer counts.
func (g *groups) wait(ctx context.Context, timeout time.Duration, name, podUID string, minimum int) error {
	if minimum < 2 {
		return nil
	}
	g.mu.Lock()
	this := g.byName[name]
	if this == nil {
		this = &group{pods: map[string]bool{}, complete: make(chan struct{})}
		g.byName[name] = this
	}
	this.pods[podUID] = true
	if len(this.pods) >= minimum {
		// Later pods start a new group, and do not wait once one of these is bound.
		close(this.complete)
		delete(g.byName, name)
	}
	g.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-this.complete:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-this.complete:
		return nil
	default:
	}
	count := len(this.pods)
	delete(this.pods, podUID)
	if len(this.pods) == 0 && g.byName[name] == this {
		delete(g.byName, name)
	}
	return fmt.Errorf("group %q has %d of the %d pods that it needs: none is bound", name, count, minimum)
}
