package kube

import (
	"context"
	"encoding/json"
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

// EvictTogether evicts the victims for the pod only if the API server would evict each of them now. It reports whether some were
// evicted.
func (v *Evictor) EvictTogether(ctx context.Context, pod *v1.Pod, victims []engine.Victim) bool {
	for _, victim := range victims {
		if err := v.evict(ctx, victim, metav1.DryRunAll); err != nil && !apierrors.IsNotFound(err) {
			v.log.Info("no pod is evicted for the group", "of", pod.Namespace+"/"+pod.Name, "because of", victim.Namespace+"/"+victim.Name, "error", err)
			return false
		}
	}
	return v.Evict(ctx, pod, victims) > 0
}

func (v *Evictor) evict(ctx context.Context, victim engine.Victim, dryRun ...string) error {
	uid := types.UID(victim.UID)
	return v.client.PolicyV1().Evictions(victim.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: victim.Namespace, Name: victim.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, DryRun: dryRun},
	})
}

// Evict evicts the victims for the pod. It returns how many were; a budget can refuse some.
func (v *Evictor) Evict(ctx context.Context, pod *v1.Pod, victims []engine.Victim) (n int) {
	var done []engine.Victim
	for _, victim := range victims {
		err := v.evict(ctx, victim)
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

// Nominate writes the node that a pod waits for, so that less important pods leave it.
func Nominate(ctx context.Context, client kubernetes.Interface, pod *v1.Pod, node string) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"nominatedNodeName": node}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	return err
}

// MayPreempt is false for a pod that must not have others evicted.
func MayPreempt(pod *v1.Pod) bool {
	policy := pod.Spec.PreemptionPolicy
	return pod.DeletionTimestamp == nil && (policy == nil || *policy != v1.PreemptNever)
}
