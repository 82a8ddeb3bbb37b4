package extender

import (
	"context"
	"errors"
	"fmt"
	"sync"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
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
		return kube.Bind(ctx, s.Cluster.client, fence.Term{}, object, args.Node, nil)
	}
	term, err := s.Term(ctx)
	if err != nil {
		return err
	}
	if !s.binds.begin(pod.UID) {
		return errBinding
	}
	defer s.binds.end(pod.UID)
	placement, err := s.Engine.Reserve(pod, r, args.Node, owner(pod.UID))
	if err != nil {
		if errors.Is(err, engine.ErrNoFit) {
			s.Metrics.Conflict(component)
			s.tries.remove(pod.UID)
		}
		return err
	}
	refused := false
	err = s.waitForGroup(ctx, object)
	var annotations map[string]string
	if err == nil {
		annotations, err = wire.Annotations(pod, placement, s.Keys.Current(), s.Clock())
	}
	if err == nil {
		err = kube.Bind(serving(ctx), s.Cluster.client, term, object, args.Node, annotations)
		refused = err != nil && !errors.Is(err, kube.ErrUnknown)
	}
	if refused {
		s.tries.add(object, args.Node)
	} else if err != nil { // the node is as good as before
		s.tries.remove(pod.UID)
	}
	// Without an answer of the API server the pod may be bound: then the reservation stays until
	// the pod's event or the engine's timeout.
	if err != nil && !errors.Is(err, kube.ErrUnknown) {
		s.Engine.Unreserve(pod.UID, owner(pod.UID))
		s.requeuer.freed()
	}
	return err
}

var errBinding = errors.New("an earlier bind of the pod has not ended: kube-scheduler retries")

// binds are the pods that are being bound. Until the end, filter does not reserve GPUs on another node for them: the Binding may
// arrive although kube-scheduler does not wait for it any more.
type binds struct {
	mu   sync.Mutex
	pods map[string]bool // by UID
}

func (b *binds) begin(podUID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pods[podUID] {
		return false
	}
	if b.pods == nil {
		b.pods = map[string]bool{}
	}
	b.pods[podUID] = true
	return true
}

func (b *binds) end(podUID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, podUID)
}

func (b *binds) has(podUID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pods[podUID]
}

type servingKey struct{}

// withServing marks the context of the server.
func withServing(ctx context.Context) context.Context {
	return context.WithValue(ctx, servingKey{}, ctx)
}

// serving returns the context of the server for that of a call, which ends when its caller hangs up.
func serving(call context.Context) context.Context {
	if server, ok := call.Value(servingKey{}).(context.Context); ok {
		return server
	}
	return call
}
