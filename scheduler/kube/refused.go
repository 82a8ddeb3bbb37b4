package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// Reasons of the Refusals's events.
const (
	EventEvicted = "GPUSliceEvicted"
	EventRefused = "GPUSliceRefused"
)

const (
	// evictAfter is for refusals that end by themselves: a container that ends at the same time has the GPU.
	evictAfter    = 8 * time.Second
	evictInterval = 2 * time.Second
	// firstPause and longestPause are between two evictions of one controller's pods: the same node may be chosen again.
	firstPause, longestPause = 30 * time.Second, 15 * time.Minute
	mostOfNode               = 64 // an agent writes no more
	longestReason            = 400
)

type RefusalsConfig struct {
	Client kubernetes.Interface
	// Term returns an error unless this process is the leader.
	Term func() (fence.Term, error)
	// Ours reports whether this engine schedules for that scheduler name; nil: for all.
	Ours  func(schedulerName string) bool
	Event func(pod *v1.Pod, kind, reason, message string)
	Clock func() time.Time // nil: time.Now
	Log   *slog.Logger
}

// Refusals evicts pods that their node refuses (api.AnnotationNodeRefused): the GPUs that they were granted have no room for them,
// so they would never run. A pod is evicted only if a controller creates it again. A node can report only its own pods.
type Refusals struct {
	RefusalsConfig
	feed  *Feed
	queue workqueue.TypedDelayingInterface[string] // of nodes

	// Run's goroutine uses these.
	since    map[types.UID]time.Time // pods that are refused
	reported map[types.UID]bool      // pods without a controller
	paused   map[types.UID]pause     // controllers
}

type pause struct {
	until time.Time
	next  time.Duration
}

func (f *Feed) Refusals(factory informers.SharedInformerFactory, c RefusalsConfig) (*Refusals, error) {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	e := &Refusals{c, f, workqueue.NewTypedDelayingQueue[string](), map[types.UID]time.Time{}, map[types.UID]bool{}, map[types.UID]pause{}}
	add := func(n *v1.Node) {
		if n.Annotations[api.AnnotationNodeRefused] != "" {
			e.queue.Add(n.Name)
		}
	}
	handler := Handler[*v1.Node]{Set: add, Replaced: func(_, n *v1.Node) { add(n) }}
	if err := f.follow(factory.Core().V1().Nodes().Informer(), handler); err != nil {
		return nil, fmt.Errorf("watch refused pods: %w", err)
	}
	return e, nil
}

// Run evicts pods until ctx ends.
func (e *Refusals) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	for {
		node, ended := e.queue.Get()
		if ended {
			return
		}
		if e.node(ctx, node) {
			e.queue.AddAfter(node, evictInterval)
		}
		e.queue.Done(node)
	}
}

// node reports whether the node refuses pods.
func (e *Refusals) node(ctx context.Context, name string) bool {
	n, err := e.feed.nodes.Get(name)
	if err != nil || n.Annotations[api.AnnotationNodeRefused] == "" {
		return false
	}
	if _, err := e.Term(); err != nil {
		return true
	}
	var refused []api.RefusedPod
	if err := json.Unmarshal([]byte(n.Annotations[api.AnnotationNodeRefused]), &refused); err != nil {
		e.Log.Warn("the node's list of refused pods can't be read", "node", name, "annotation", api.AnnotationNodeRefused, "error", err)
		return false // until it changes
	}
	reasons := map[types.UID]api.RefusedPod{}
	for _, r := range refused[:min(len(refused), mostOfNode)] {
		reasons[types.UID(r.UID)] = r
	}
	pods, _ := e.feed.pods.List(labels.Everything()) // listers of caches return no errors
	for _, p := range pods {
		if r, is := reasons[p.UID]; is && p.Spec.NodeName == name && p.DeletionTimestamp == nil && !ended(p) &&
			(e.Ours == nil || e.Ours(cmp.Or(p.Spec.SchedulerName, v1.DefaultSchedulerName))) {
			e.pod(ctx, p, r)
		}
	}
	e.forget()
	return true
}

func (e *Refusals) pod(ctx context.Context, p *v1.Pod, r api.RefusedPod) {
	now := e.Clock()
	first, known := e.since[p.UID]
	if !known {
		e.since[p.UID] = now
		return
	}
	if now.Sub(first) < evictAfter || e.reported[p.UID] {
		return
	}
	// The informers may leave the owners out.
	object, err := e.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || object.UID != p.UID || object.DeletionTimestamp != nil {
		return
	}
	if len(r.Reason) > longestReason {
		r.Reason = strings.ToValidUTF8(r.Reason[:longestReason], "") + "…"
	}
	owner := metav1.GetControllerOf(object)
	if owner == nil {
		e.reported[p.UID] = true
		e.Event(object, v1.EventTypeWarning, EventRefused, fmt.Sprintf("node %s refuses container %s: %s. The pod stays there, because "+
			"no controller would create it again: delete it, and create it again", p.Spec.NodeName, r.Container, r.Reason))
		return
	}
	last := e.paused[owner.UID]
	if now.Before(last.until) {
		return
	}
	err = e.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
	switch {
	case err == nil:
		next := min(max(2*last.next, firstPause), longestPause)
		e.paused[owner.UID] = pause{now.Add(next), next}
		e.Log.Info("evicted a pod that its node refuses", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName, "reason", r.Reason)
		e.Event(object, v1.EventTypeWarning, EventEvicted, fmt.Sprintf("node %s refused container %s: %s. The pod is evicted, and %s %s creates "+
			"it again", p.Spec.NodeName, r.Container, r.Reason, owner.Kind, owner.Name))
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
	default: // a PodDisruptionBudget, or the API server
		e.Log.Warn("failed to evict a pod that its node refuses: retrying", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName, "error", err)
	}
}

// forget drops what is old. A refused pod is listed again at each turn.
func (e *Refusals) forget() {
	now := e.Clock()
	for uid, p := range e.paused {
		if now.Sub(p.until) > longestPause {
			delete(e.paused, uid)
		}
	}
	if len(e.since) <= 16*mostOfNode {
		return
	}
	there := map[types.UID]bool{}
	pods, _ := e.feed.pods.List(labels.Everything())
	for _, p := range pods {
		there[p.UID] = true
	}
	gone := func(uid types.UID) bool { return !there[uid] }
	maps.DeleteFunc(e.since, func(uid types.UID, _ time.Time) bool { return gone(uid) })
	maps.DeleteFunc(e.reported, func(uid types.UID, _ bool) bool { return gone(uid) })
}
