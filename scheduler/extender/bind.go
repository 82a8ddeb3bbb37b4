package extender

import (
	"context"
	"errors"
	"fmt"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
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
	err = s.waitForGroup(ctx, object)
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
		s.requeuer.freed()
	}
	return err
}
