package extender

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// AnnotationWoken is when a pod that had been refused was tried again for our sake.
const AnnotationWoken = "gpuslice.io/woken"

const (
	// lag is how far this process's view of the cluster may be behind kube-scheduler's.
	lag = 2 * time.Second
	// maxWaking bounds how many pods wait to be woken.
	maxWaking = 1000
)

// refusals are the pods that were refused a moment ago. kube-scheduler tries them again at any
// event, and it may learn of an event before we do: it asks, is told of the state before, and
// has no event to come. So when room is made, the pods that were refused just before that
// are changed, which is an event of their own.
type refusals struct {
	clock func() time.Time

	mu     sync.Mutex
	at     map[types.UID]refusal
	waking chan *v1.Pod
}

type refusal struct {
	pod  *v1.Pod
	when time.Time
}

func newRefusals(clock func() time.Time) *refusals {
	return &refusals{clock: clock, at: map[types.UID]refusal{}, waking: make(chan *v1.Pod, maxWaking)}
}

// put says that the pod was refused now.
func (r *refusals) put(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, old := range r.at {
		if now.Sub(old.when) > lag {
			delete(r.at, uid)
		}
	}
	r.at[pod.UID] = refusal{pod, now}
}

// take says that the pod has found room.
func (r *refusals) take(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, uid)
}

// freed is the event that there is more room than before.
func (r *refusals) freed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, refused := range r.at {
		delete(r.at, uid)
		if now.Sub(refused.when) > lag {
			continue
		}
		select {
		case r.waking <- refused.pod:
		default: // so many are tried again that the next event is not far
		}
	}
}

// wake has all of these tried again: of a pod that has less than before kube-scheduler makes no event.
func (r *refusals) wake(pods []*scheduler.Pod) {
	for _, p := range pods {
		select {
		case r.waking <- &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}}:
		default: // as in freed
		}
	}
}

// run wakes pods until ctx ends.
func (r *refusals) run(ctx context.Context, wake func(context.Context, *v1.Pod)) {
	for {
		select {
		case <-ctx.Done():
			return
		case pod := <-r.waking:
			wake(ctx, pod)
		}
	}
}

// Sink is the engine, for the events of the cluster: it notices those that make room.
func (s *Server) Sink() Sink { return Sink{s.Engine, s.refusals} }

// Sink is told of the cluster's events.
type Sink struct {
	*engine.Engine
	refusals *refusals
}

// SetNode implements kube.Sink.
func (s Sink) SetNode(n *scheduler.Node) {
	s.Engine.SetNode(n)
	s.refusals.freed()
}

// SetPod implements kube.Sink.
func (s Sink) SetPod(p *scheduler.Pod) {
	held := p.Ended && s.AllocatedNode(p.UID) != ""
	before := s.Resized()
	s.Engine.SetPod(p)
	if held {
		s.refusals.freed()
	}
	if s.Resized() != before {
		s.refusals.wake(s.PendingUnreserved(maxWaking))
	}
}

// DeletePod implements kube.Sink.
func (s Sink) DeletePod(uid string) {
	held := s.AllocatedNode(uid) != ""
	s.Engine.DeletePod(uid)
	if held {
		s.refusals.freed()
	}
}
