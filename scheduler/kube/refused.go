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
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// Reasons of the Refusals's events.
const (
	EventEvicted = "GPUSliceEvicted"
	EventRefused = "GPUSliceRefused"
)

const (
	// evictAfter is for refusals that end by themselves: a container that ends at the same time has the GPU. The kubelet tries
	// again after 10 to 15 s, and only then the agent knows.
	evictAfter    = 18 * time.Second
	evictInterval = 2 * time.Second
	// freeEvictions are those of a controller's pods and of pods that replace them, on one node, without a pause: a node has a
	// reason that ends. The same node may be chosen again, so the others have pauses between them.
	freeEvictions = 3
	// freeEvictionsAnywhere are those on all nodes together: each of them can refuse the same pod.
	freeEvictionsAnywhere    = 10
	firstPause, longestPause = 30 * time.Second, 15 * time.Minute
	// clockSkew is between the API server, which writes when a pod was created, and this process.
	clockSkew     = 10 * time.Second
	mostOfNode    = 64 // an agent writes no more
	longestReason = 400
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
// so they would never run. A pod is evicted only if a controller creates it again. A node can report only its own pods with grants.
type Refusals struct {
	RefusalsConfig
	feed  *Feed
	queue workqueue.TypedDelayingInterface[string] // of nodes

	// Run's goroutine uses these.
	refused map[types.UID]*refusal // pods
	paused  map[placed]pause
}

// placed is a controller with pods on a node; without a node: on any.
type placed struct {
	owner types.UID
	node  string
}

func (p placed) free() int {
	if p.node == "" {
		return freeEvictionsAnywhere
	}
	return freeEvictions
}

type refusal struct {
	node  string
	since time.Time
	done  bool // it is evicted, or has no controller
}

// pause is for the pods that replace those that were evicted.
type pause struct {
	began time.Time // the first eviction of the last ones
	count int       // evictions, of which each was of a pod that replaced an evicted one, but the first
}

// until is when the next pod may be evicted, if so many have no pause.
func (p pause) until(free int) time.Time {
	if p.count < free {
		return p.began
	}
	return p.began.Add(min(firstPause<<min(p.count-free, 10), longestPause))
}

// replaces reports whether the controller created the pod after the eviction. Others that were refused at the same time do not
// wait for it.
func (p pause) replaces(object *v1.Pod, refused time.Time) bool {
	return refused.After(p.began) && object.CreationTimestamp.Time.After(p.began.Add(-clockSkew))
}

func (f *Feed) Refusals(factory informers.SharedInformerFactory, c RefusalsConfig) (*Refusals, error) {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	e := &Refusals{c, f, workqueue.NewTypedDelayingQueue[string](), map[types.UID]*refusal{}, map[placed]pause{}}
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
	reasons := map[types.UID]api.RefusedPod{}
	// What the node no longer lists begins again if it is listed again.
	defer func() {
		maps.DeleteFunc(e.refused, func(uid types.UID, r *refusal) bool {
			_, listed := reasons[uid]
			return r.node == name && !listed
		})
	}()
	n, err := e.feed.nodes.Get(name)
	if err != nil || n.Annotations[api.AnnotationNodeRefused] == "" {
		return false
	}
	var refused []api.RefusedPod
	if err := json.Unmarshal([]byte(n.Annotations[api.AnnotationNodeRefused]), &refused); err != nil {
		e.Log.Warn("the node's list of refused pods can't be read", "node", name, "annotation", api.AnnotationNodeRefused, "error", err)
		return false // until it changes
	}
	for _, r := range refused[:min(len(refused), mostOfNode)] {
		reasons[types.UID(r.UID)] = r
	}
	if _, err := e.Term(); err != nil {
		return true
	}
	pods, _ := e.feed.pods.List(labels.Everything()) // listers of caches return no errors
	for _, p := range pods {
		if r, is := reasons[p.UID]; is && p.Spec.NodeName == name && p.DeletionTimestamp == nil && !convert.Ended(p) && granted(p) &&
			(e.Ours == nil || e.Ours(cmp.Or(p.Spec.SchedulerName, v1.DefaultSchedulerName))) {
			e.pod(ctx, p, r)
		}
	}
	e.forget()
	return true
}

func (e *Refusals) pod(ctx context.Context, p *v1.Pod, r api.RefusedPod) {
	now := e.Clock()
	refused := e.refused[p.UID]
	if refused == nil {
		e.refused[p.UID] = &refusal{node: p.Spec.NodeName, since: now}
		return
	}
	if now.Sub(refused.since) < evictAfter || refused.done {
		return
	}
	// The informers may leave the owners out.
	object, err := e.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || object.UID != p.UID || object.DeletionTimestamp != nil || !granted(object) {
		return
	}
	if len(r.Reason) > longestReason {
		r.Reason = strings.ToValidUTF8(r.Reason[:longestReason], "") + "…"
	}
	owner := metav1.GetControllerOf(object)
	if owner == nil {
		refused.done = true
		e.Event(object, v1.EventTypeWarning, EventRefused, fmt.Sprintf("node %s refuses container %s: %s. The pod stays there, because "+
			"no controller would create it again: delete it, and create it again", p.Spec.NodeName, r.Container, r.Reason))
		return
	}
	next := map[placed]pause{}
	for _, at := range []placed{{owner.UID, p.Spec.NodeName}, {owner.UID, ""}} {
		last, paused := e.paused[at]
		again := paused && last.replaces(object, refused.since)
		if again && now.Before(last.until(at.free())) {
			return
		}
		if again || !paused {
			next[at] = pause{now, last.count + 1}
		}
	}
	err = e.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
	switch {
	case err == nil:
		refused.done = true
		maps.Copy(e.paused, next)
		e.Log.Info("evicted a pod that its node refuses", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName, "reason", r.Reason)
		e.Event(object, v1.EventTypeWarning, EventEvicted, fmt.Sprintf("node %s refused container %s: %s. The pod is evicted, and %s %s creates "+
			"it again", p.Spec.NodeName, r.Container, r.Reason, owner.Kind, owner.Name))
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
	default: // a PodDisruptionBudget, or the API server
		e.Log.Warn("failed to evict a pod that its node refuses: retrying", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName, "error", err)
	}
}

// granted reports whether a scheduler has given the pod GPUs: a node can't have other pods evicted.
func granted(p *v1.Pod) bool {
	return p.Annotations[api.AnnotationGrant] != "" || p.Annotations[api.AnnotationHAMiAllocated] != ""
}

// forget drops old pauses.
func (e *Refusals) forget() {
	now := e.Clock()
	maps.DeleteFunc(e.paused, func(at placed, p pause) bool { return now.Sub(p.until(at.free())) > longestPause })
}
