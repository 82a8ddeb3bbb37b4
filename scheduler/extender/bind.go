package extender

import (
	"context"
	"errors"
	"fmt"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// bind books the pod's GPUs on the node and binds it with its grant.
func (s *Server) bind(ctx context.Context, args *extenderv1.ExtenderBindingArgs) (*extenderv1.ExtenderBindingResult, error) {
	if err := s.bound(ctx, args); err != nil {
		err = fmt.Errorf("bind pod %s/%s to node %s: %w", args.PodNamespace, args.PodName, args.Node, err)
		s.Log.Warn("not bound", "pod", args.PodNamespace+"/"+args.PodName, "node", args.Node, "error", err)
		return &extenderv1.ExtenderBindingResult{Error: err.Error()}, err
	}
	return &extenderv1.ExtenderBindingResult{}, nil
}

func (s *Server) bound(ctx context.Context, args *extenderv1.ExtenderBindingArgs) error {
	object, err := s.Cluster.Pod(ctx, args.PodNamespace, args.PodName, args.PodUID)
	if err != nil {
		return err
	}
	if object.Spec.NodeName == args.Node {
		return nil // an answer of ours was lost
	}
	pod, r, err := s.wanted(object)
	if err != nil {
		return err
	}
	if r == nil {
		return s.Cluster.Bind(ctx, object, args.Node, nil)
	}
	s.holds.take(pod.UID)
	placement, err := s.Engine.Reserve(pod, r, args.Node, owner(pod.UID))
	if err != nil {
		if errors.Is(err, engine.ErrNoRoom) {
			s.Metrics.Conflict(component)
		}
		return err
	}
	err = s.together(ctx, pod, r)
	var annotations map[string]string
	if err == nil {
		annotations, err = wire.Annotations(pod, placement, s.Key(), s.Clock())
	}
	if err == nil {
		err = s.Cluster.Bind(ctx, object, args.Node, annotations)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, kube.ErrUnknown) {
		// Once the caller has hung up, or the API server can't be asked, the pod may be bound or not: the
		// reservation is kept then, until the pod's own event or the engine's time says which it is.
		s.Engine.Unreserve(pod.UID, owner(pod.UID))
	}
	return err
}

// together waits for the other pods of the pod's group. Where some are bound they were placed
// together: one that comes later, in place of one that has failed, waits for nobody, as with the plugin.
func (s *Server) together(ctx context.Context, pod *scheduler.Pod, r *request.Request) error {
	group := r.Rules.Group
	if group == "" || r.Rules.GroupMin < 2 {
		return nil
	}
	if s.Cluster.Bound(pod.Namespace, group) > 0 {
		return nil
	}
	return s.gangs.wait(ctx, s.GangTimeout, pod.Namespace+"/"+group, pod.UID, r.Rules.GroupMin)
}
