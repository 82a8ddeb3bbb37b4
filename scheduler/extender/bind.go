package extender

import (
	"context"
	"errors"
	"fmt"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// bind books the pod's cards on the node and binds it with its grant.
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
			s.Metrics.Prevented(Door)
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
	if err != nil && ctx.Err() == nil {
		// Once the caller has hung up, the pod may be bound or not: the reservation is kept
		// then, until the pod's own event or the engine's time says which it is.
		s.Engine.Unreserve(pod.UID, owner(pod.UID))
	}
	return err
}

// together waits for the other pods of the pod's group.
func (s *Server) together(ctx context.Context, pod *scheduler.Pod, r *request.Request) error {
	group := r.Rules.Group
	if group == "" || r.Rules.GroupMin < 2 {
		return nil
	}
	least := r.Rules.GroupMin - s.Cluster.Bound(pod.Namespace, group)
	return s.gangs.wait(ctx, s.GangTimeout, pod.Namespace+"/"+group, pod.UID, least)
}

// preempt says on which nodes evicting whom makes room for the pod, cards included.
func (s *Server) preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) (*extenderv1.ExtenderPreemptionResult, error) {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	pod, r, err := s.wanted(args.Pod)
	if err != nil {
		return result, err // nobody is evicted for a pod that fits nowhere
	}
	var evaluation *engine.Evaluation
	if r != nil {
		evaluation = s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	}
	lower := s.Cluster.Lower(pod.Priority)
	for node, victims := range metaVictims(args) {
		if victims == nil {
			victims = &extenderv1.MetaVictims{}
		}
		if r == nil {
			result.NodeNameToMetaVictims[node] = victims
			continue
		}
		// Who is evicted for other reasons is gone whatever we say.
		overlay := evaluation.Snapshot().Overlay()
		for _, v := range victims.Pods {
			overlay = overlay.Without(node, v.UID)
		}
		more, ok := evaluation.Victims(overlay, node, lower[node])
		if !ok {
			continue
		}
		all := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations, Pods: victims.Pods}
		for _, uid := range more {
			all.Pods = append(all.Pods, &extenderv1.MetaPod{UID: uid})
		}
		result.NodeNameToMetaVictims[node] = all
	}
	return result, nil
}

// metaVictims are the call's victims by UID, in whichever form they were sent.
func metaVictims(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.MetaVictims {
	if args.NodeNameToMetaVictims != nil {
		return args.NodeNameToMetaVictims
	}
	all := make(map[string]*extenderv1.MetaVictims, len(args.NodeNameToVictims))
	for node, victims := range args.NodeNameToVictims {
		meta := &extenderv1.MetaVictims{}
		if victims != nil {
			meta.NumPDBViolations = victims.NumPDBViolations
			for _, p := range victims.Pods {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
		}
		all[node] = meta
	}
	return all
}
