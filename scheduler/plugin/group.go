package plugin

import (
	"cmp"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler/request"
)

// groupOf returns the pod's group as namespace/name; empty for none. Pods without GPUs can be in
// a group.
func groupOf(pod *v1.Pod) string {
	name := pod.Labels[request.LabelGroup]
	if name == "" {
		return ""
	}
	return pod.Namespace + "/" + name
}

const groupIndex = "gpuslice.io/pod-group"

// indexGroups indexes pods by group.
var indexGroups = cache.Indexers{groupIndex: func(object any) ([]string, error) {
	if pod, ok := object.(*v1.Pod); ok {
		if key := groupOf(pod); key != "" {
			return []string{key}, nil
		}
	}
	return nil, nil
}}

// group is a snapshot of a group's pods.
type group struct {
	key     string
	pods    []*v1.Pod
	pending []*v1.Pod // not bound
	minimum int       // the largest minimum of its pods
	// started: some are bound, so the minimum was reached. Replacements of failed pods need not wait.
	started  bool
	priority int32     // highest
	created  time.Time // oldest
}

// mustWait reports whether the pods have to wait for each other.
func (g *group) mustWait() bool { return g.minimum > 1 && !g.started }

// before orders groups by priority, then age.
func (g *group) before(h *group) bool {
	return cmp.Or(cmp.Compare(h.priority, g.priority), g.created.Compare(h.created), cmp.Compare(g.key, h.key)) < 0
}

// newGroup ignores pods that ended.
func newGroup(key string, pods []*v1.Pod) *group {
	g := &group{key: key}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		g.pods = append(g.pods, pod)
		if pod.Spec.NodeName == "" {
			g.pending = append(g.pending, pod)
		} else {
			g.started = true
		}
		if n, err := strconv.Atoi(pod.Annotations[request.AnnotationGroupMin]); err == nil {
			g.minimum = max(g.minimum, n)
		}
		if p := pod.Spec.Priority; p != nil {
			g.priority = max(g.priority, *p)
		}
		if at := pod.CreationTimestamp.Time; g.created.IsZero() || at.Before(g.created) {
			g.created = at
		}
	}
	return g
}
