package extender

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

const (
	// lag is how far this process's caches can be behind those of kube-scheduler.
	lag    = 2 * time.Second
	queued = 1000
)

// requeuer makes kube-scheduler retry pods that were rejected shortly before GPUs became free: kube-scheduler
// may receive an event before this process does. A change of the pod is an event.
type requeuer struct {
	clock func() time.Time

	mu       sync.Mutex
	rejected map[types.UID]rejection
	queue    chan *v1.Pod
}

type rejection struct {
	pod *v1.Pod
	at  time.Time
}

func newRequeuer(clock func() time.Time) *requeuer {
	return &requeuer{clock: clock, rejected: map[types.UID]rejection{}, queue: make(chan *v1.Pod, queued)}
}

func (r *requeuer) add(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, old := range r.rejected {
		if now.Sub(old.at) > lag {
			delete(r.rejected, uid)
		}
	}
	r.rejected[pod.UID] = rejection{pod, now}
}

func (r *requeuer) remove(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rejected, uid)
}

// freed requeues the recently rejected pods.
func (r *requeuer) freed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, old := range r.rejected {
		delete(r.rejected, uid)
		if now.Sub(old.at) <= lag {
			r.enqueue(old.pod)
		}
	}
}

// enqueue drops the pod if the queue is full: then the next event comes soon.
func (r *requeuer) enqueue(pod *v1.Pod) {
	select {
	case r.queue <- pod:
	default:
	}
}

func (r *requeuer) run(ctx context.Context, requeue func(context.Context, *v1.Pod)) {
	for {
		select {
		case <-ctx.Done():
			return
		case pod := <-r.queue:
			requeue(ctx, pod)
		}
	}
}

func (s *Server) Sink() Sink { return Sink{s.Engine, s.requeuer} }

// Sink passes events to the engine and requeues pods when GPUs become free.
type Sink struct {
	*engine.Engine
	requeuer *requeuer
}

func (s Sink) SetNode(n *scheduler.Node) {
	s.Engine.SetNode(n)
	s.requeuer.freed()
}

// SetPod implements kube.Sink.
func (s Sink) SetPod(p *scheduler.Pod) {
	frees := p.Ended && s.AllocatedNode(p.UID) != ""
	kube.SetPod(s.Engine, p, s.requeuer.enqueue)
	if frees {
		s.requeuer.freed()
	}
}

func (s Sink) DeletePod(uid string) {
	frees := s.AllocatedNode(uid) != ""
	s.Engine.DeletePod(uid)
	if frees {
		s.requeuer.freed()
	}
}
