package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Evictor evicts pods for a pending pod, by the API server, which respects PodDisruptionBudgets.
type Evictor struct {
	client kubernetes.Interface
	engine *engine.Engine
	log    *slog.Logger

	mu      sync.Mutex
	evicted map[types.UID]evicted // by pending pod
}

type evicted struct {
	victims []engine.Victim
	at      time.Time
}

// evictionTime is how long victims may take to end before others are evicted for the same pod.
const evictionTime = 10 * time.Minute

func NewEvictor(client kubernetes.Interface, e *engine.Engine, log *slog.Logger) *Evictor {
	return &Evictor{client: client, engine: e, log: log, evicted: map[types.UID]evicted{}}
}

// Waits reports whether pods that were evicted for the pod still have GPUs.
func (v *Evictor) Waits(pod types.UID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, e := range v.evicted {
		if time.Since(e.at) > evictionTime {
			delete(v.evicted, uid)
		}
	}
	for _, victim := range v.evicted[pod].victims {
		if v.engine.AllocatedNode(victim.UID) != "" {
			return true
		}
	}
	delete(v.evicted, pod)
	return false
}

// Leaving reports whether the pod was evicted for another one.
func (v *Evictor) Leaving(uid string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.evicted {
		for _, victim := range e.victims {
			if victim.UID == uid {
				return true
			}
		}
	}
	return false
}

// Evict evicts the victims for the pod. It returns how many were; a budget can refuse some.
func (v *Evictor) Evict(ctx context.Context, pod *v1.Pod, victims []engine.Victim) (n int) {
	var done []engine.Victim
	for _, victim := range victims {
		uid := types.UID(victim.UID)
		err := v.client.PolicyV1().Evictions(victim.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: victim.Namespace, Name: victim.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
		})
		log := v.log.With("pod", victim.Namespace+"/"+victim.Name, "for", pod.Namespace+"/"+pod.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			log.Info("failed to evict pod", "error", err)
			continue
		}
		log.Info("evicted pod")
		done = append(done, victim)
	}
	if len(done) > 0 {
		v.mu.Lock()
		v.evicted[pod.UID] = evicted{done, time.Now()}
		v.mu.Unlock()
	}
	return len(done)
}

// MayPreempt is false for a pod that must not have others evicted.
func MayPreempt(pod *v1.Pod) bool {
	policy := pod.Spec.PreemptionPolicy
	return pod.DeletionTimestamp == nil && (policy == nil || *policy != v1.PreemptNever)
}
