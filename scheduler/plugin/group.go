package plugin

import (
	"cmp"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler/request"
)

// groupOf is the key of the pod's group, as namespace/name; empty: it is in none. A pod
// without GPUs can be in one too.
func groupOf(pod *v1.Pod) string {
	name := pod.Labels[request.LabelGroup]
	if name == "" {
		return ""
	}
	return pod.Namespace + "/" + name
}

const groupIndex = "gpuslice.io/pod-group"

// indexGroups lets an informer of pods find those of a group.
var indexGroups = cache.Indexers{groupIndex: func(object any) ([]string, error) {
	if pod, ok := object.(*v1.Pod); ok {
		if key := groupOf(pod); key != "" {
			return []string{key}, nil
		}
	}
	return nil, nil
}}

// group is a group's pods at a moment.
type group struct {
	key     string
	pods    []*v1.Pod
	waiting []*v1.Pod // not bound yet
	// least is how many have to be placed together: the most that a pod of it says.
	least int
	// admitted says that some are bound. They are so only since all were placed: a pod that
	// comes later, in place of one that has failed, waits for nobody.
	admitted bool
	// priority and created are by what it goes before other groups.
	priority int32
	created  time.Time
}

// together says whether the pods have to wait for each other.
func (g *group) together() bool { return g.least > 1 && !g.admitted }

// before orders groups that want the same GPUs: the more important first, then the older.
func (g *group) before(h *group) bool {
	return cmp.Or(cmp.Compare(h.priority, g.priority), g.created.Compare(h.created), cmp.Compare(g.key, h.key)) < 0
}

// gathered is the group of these pods, some of which may have ended.
func gathered(key string, pods []*v1.Pod) *group {
	g := &group{key: key}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		g.pods = append(g.pods, pod)
		if pod.Spec.NodeName == "" {
			g.waiting = append(g.waiting, pod)
		} else {
			g.admitted = true
		}
		if n, err := strconv.Atoi(pod.Annotations[request.AnnotationGroupMin]); err == nil {
			g.least = max(g.least, n)
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
